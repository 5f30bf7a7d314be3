"""Long names, cut by hand."""

import pytest

from chopperd.traces.kernels.names import LONGEST_NAME, bounded, folded, is_user_frame


def test_a_name_that_is_not_long_stays() -> None:
    assert bounded("x" * LONGEST_NAME) == "x" * LONGEST_NAME


def test_a_long_name_keeps_its_ends_and_is_told_from_its_like() -> None:
    one, other = (f"Model/{'x' * 500}{middle}{'x' * 500}/Linear_0" for middle in "ab")
    assert bounded(one).startswith("Model/xxx")
    assert bounded(one).endswith("xxx/Linear_0")
    assert bounded(one) != bounded(other)
    assert len(bounded(one)) == LONGEST_NAME + 10
    assert len(bounded("\udc80" * 300)) == LONGEST_NAME + 10


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("<built-in method to of Tensor object at 0x7f3a11>", "<built-in method to of Tensor>"),
        ("<function f at 0x7f3a11>", "<function f>"),
        ("wait 0xdeadbeef", "wait "),
        ("request 17", "request#"),
        ("req-17/prefill", "req#/prefill"),
        ("request_id=17", "request_id#"),
        ("generate(id: 17)", "generate(id#)"),
        ("chunk 1234567", "chunk #"),
        ("run 3f2b8a10-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "run #"),
        ("run 3f2b8a101c2d4e5f", "run #"),
        ("execute_context_1(888_788544)_generation_0(0)", "execute_context_#(#)_generation_#(#)"),
        # Numbers that name a place stay.
        ("Layer12/attn", "Layer12/attn"),
        ("train.py(40): train_step", "train.py(40): train_step"),
        ("aten::conv2d", "aten::conv2d"),
        ("triton_poi_fused_add_12", "triton_poi_fused_add_12"),
        ("deadbeefdeadbeef", "deadbeefdeadbeef"),
    ],
)
def test_addresses_and_numbers_of_requests_are_folded(name: str, expected: str) -> None:
    assert folded(name) == expected


@pytest.mark.parametrize(
    ("name", "is_user"),
    [
        ("train.py(40): train_step", True),
        ("PIL/Image.py(1321): load", True),
        ("/opt/venv/lib/python3.11/site-packages/ray/get.py(3): get", True),
        ("/opt/venv/lib/python3.11/site-packages/torch/optim/sgd.py(3): step", False),
        ("torch/optim/optimizer.py(480): wrapper", False),
        ("torchvision/models/resnet.py(1): forward", True),
        ("json/decoder.py(343): raw_decode", False),
        ("enum.py(1): f", False),
        ("/usr/lib/python3.11/json/decoder.py(343): raw_decode", False),
        ("<built-in function collect>", False),
        ("<string>(2): __init__", False),
        ("<frozen abc>(117): __instancecheck__", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_frames_of_the_user_are_told_by_their_file(name: str, is_user: bool) -> None:
    assert is_user_frame(name) == is_user
