import pytest

from chopperd.traces.kernels.names import framework


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), "none"),
        (("aten::add", "ProfilerStep#1"), "none"),
        (("FullyShardedDataParallel._pre_forward",), "fsdp1"),
        (("FSDP::pre_forward (layers.0)",), "fsdp2"),
        (("fsdp::chunk_cat",), "fsdp2"),
        (("DistributedDataParallel.forward",), "ddp"),
        (("DeepSpeedEngine.forward",), "deepspeed"),
        (("megatron.core.pipeline_parallel.forward_step",), "megatron"),
        (("DistributedDataParallel.forward", "FSDP::all_gather"), "several"),
    ],
)
def test_a_framework_is_known_by_the_names_that_only_it_writes(
    names: tuple[str, ...], expected: str
) -> None:
    assert framework(names).name == expected


def test_evidence_is_up_to_three_names_each_without_module_names() -> None:
    names = [f"FSDP::{what} (secret.layer)" for what in ("d", "c", "b", "a")]
    found = framework([*names, "DistributedDataParallel.forward"])
    assert found.evidence == (
        "fsdp2: FSDP::a",
        "fsdp2: FSDP::b",
        "fsdp2: FSDP::c",
        "ddp: DistributedDataParallel.forward",
    )
