import pytest

from chopperd.traces.read.annotate import device_pids
from tests.layouts import LAYOUTS, Event, Layout, complete_event, native


def record(pid: object, device: object, category: str = "kernel") -> Event:
    return {**complete_event(category, "k", 1, 1, device=device, kernel="k"), "pid": pid}


CALL = record(4711, None, "cuda_runtime")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_pid_of_a_devices_records_is_as_the_file_writes_it(layout: Layout) -> None:
    events = [CALL, record("GPU three", 3), CALL, record(2, "2", "gpu_memcpy"), CALL]
    assert device_pids([layout(events, {})], [2, 3]) == {2: 2, 3: "GPU three"}


def test_where_no_record_says_it_the_pid_is_the_number() -> None:
    assert device_pids([native([CALL, CALL], {})], [0, 1]) == {0: 0, 1: 1}


def test_no_more_is_read_than_it_takes() -> None:
    text = native([CALL, record(0, 0), CALL], {})
    pieces = iter([text, text])
    assert device_pids(pieces, [0]) == {0: 0}
    assert list(pieces) == [text]


def test_a_call_of_a_process_with_a_devices_number_is_no_record() -> None:
    call = {**record(1, None, "cuda_runtime"), "args": {"kernel": "k"}}
    assert device_pids([native([CALL, call, record("one", 1)], {})], [1]) == {1: "one"}
