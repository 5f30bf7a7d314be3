"""GPUs and parts of GPUs that come and go while a real sampler runs over the fake driver."""

from chopperd.clock import SystemClock
from chopperd.live.node import LiveNode
from chopperd.model.live import SamplerCondition, SamplerLive
from chopperd.sampling.supervisor import SamplerSupervisor
from tests.fakes.nvml.fixtures import FakeNvml, MakeFakeNvml
from tests.fakes.nvml.scenario import GPU_IS_LOST, SUCCESS
from tests.integration.sampling.nvml import Supervise, labels, supervise, wait_for_samples
from tests.waiting import wait_for

__all__ = ["supervise"]

RUNNING = SamplerLive(condition=SamplerCondition.RUNNING, pid=1)
ZERO, ONE = "GPU-00000000", "GPU-00000001"


def test_a_new_gpu_is_sampled_and_the_others_go_on(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml(gpu_count=1)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO)
    ticks = supervisor.reader.status(0).ticks_count
    fake.scenario.add_gpu()
    wait_for_samples(supervisor, ZERO, ONE)
    assert labels(supervisor) == {ZERO: "0", ONE: "1"}
    assert supervisor.reader.status(0).ticks_count > ticks
    assert (supervisor.restart_count, supervisor.failure) == (1, None)


def test_a_gpu_that_was_silent_at_the_start_keeps_its_number_when_it_answers(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml(gpu_count=3)
    fake.scenario.gpus[1].fails(GPU_IS_LOST)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, "GPU-00000002")
    assert labels(supervisor) == {ZERO: "0", "": "1", "GPU-00000002": "2"}
    wait_for(lambda: "code 15" in (supervisor.reader.slow_state(1).trouble or ""))
    fake.scenario.gpus[1].fails(SUCCESS)
    wait_for_samples(supervisor, ZERO, ONE, "GPU-00000002")
    assert labels(supervisor) == {ZERO: "0", ONE: "1", "GPU-00000002": "2"}


def test_parts_of_a_card_come_and_go_and_the_card_s_counts_never_fall(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml(gpu_count=1)
    first = fake.scenario.partition(0, 1, uuid="MIG-a", used_bytes=1 << 30)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO, "MIG-a")
    written = supervisor.reader.status(0).written
    fake.scenario.partition(0, 2, uuid="MIG-b", used_bytes=2 << 30)
    wait_for_samples(supervisor, "MIG-b")
    assert labels(supervisor) == {ZERO: "0", "MIG-a": "0.1", "MIG-b": "0.2"}
    fake.scenario.remove(first)
    # What is made in its place has its number, though another identity.
    fake.scenario.partition(0, 1, uuid="MIG-c", used_bytes=3 << 30)
    wait_for_samples(supervisor, ZERO, "MIG-c", "MIG-b")
    assert labels(supervisor) == {ZERO: "0", "MIG-c": "0.1", "MIG-b": "0.2"}
    assert supervisor.reader.status(0).written > written
    newest = supervisor.reader.drain(1).records[-1]
    assert newest["memory_used_bytes"] == 3 << 30
    assert newest["sm_clock_mhz"] != newest["sm_clock_mhz"]  # the card's, not the part's


def test_a_part_that_is_destroyed_is_lost_by_itself(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake = make_fake_nvml(gpu_count=1)
    part = fake.scenario.partition(0, 1, uuid="MIG-a")
    fake.scenario.partition(0, 2, uuid="MIG-b")
    supervisor = supervise(fake)
    node = LiveNode(SystemClock(), version="1", node="here", backend="nvml", slow_hz=5.0)
    wait_for_samples(supervisor, ZERO, "MIG-a", "MIG-b")
    fake.scenario.remove(part)

    def up() -> dict[str, bool]:
        supervisor.poll()
        node.follow(supervisor.ring)
        return {gpu.info.gpu: gpu.up for gpu in node.snapshot(RUNNING).gpus}

    wait_for(lambda: up() == {"0": True, "0.1": False, "0.2": True}, "the part to go")
    node.follow(None)


def test_more_gpus_than_there_is_room_for_move_into_a_larger_memory(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    """The first memory has room for 1 GPU and 8 more; then there are 12."""
    fake = make_fake_nvml(gpu_count=1)
    supervisor = supervise(fake)
    node = LiveNode(SystemClock(), version="1", node="here", backend="nvml", slow_hz=5.0)
    wait_for_samples(supervisor, ZERO)
    before = ticks_of_the_first(node, supervisor)
    small, identity = supervisor.reader, supervisor.reader.identity
    position = small.drain(0).position
    for _ in range(11):
        fake.scenario.add_gpu()
    uuids = [f"GPU-0000000{n:x}" for n in range(12)]
    wait_for_samples(supervisor, *uuids)
    assert supervisor.reader is not small
    assert supervisor.reader.identity == identity
    assert labels(supervisor) == {uuid: str(n) for n, uuid in enumerate(uuids)}
    # Records keep their numbers, and none is lost on the way.
    drained = supervisor.reader.drain(0, position)
    assert drained.overwritten_count == 0
    assert drained.records["sequence"][0] == position + 1
    after = ticks_of_the_first(node, supervisor)
    written = supervisor.reader.status(0).ticks_count
    assert before < after <= written  # counted once, not once a memory
    assert supervisor.failure is None
    node.follow(None)


def ticks_of_the_first(node: LiveNode, supervisor: SamplerSupervisor) -> int:
    node.follow(supervisor.ring)
    return node.snapshot(RUNNING).gpus[0].ticks_count


def test_changes_that_repeat_are_followed_with_growing_pauses(
    make_fake_nvml: MakeFakeNvml, supervise: Supervise
) -> None:
    fake: FakeNvml = make_fake_nvml(gpu_count=1)
    supervisor = supervise(fake)
    wait_for_samples(supervisor, ZERO)
    part = None
    for turn in range(3):
        if part is not None:
            fake.scenario.remove(part)
        part = fake.scenario.partition(0, 1, uuid=f"MIG-{turn}")
        wait_for_samples(supervisor, f"MIG-{turn}")
    assert supervisor.restart_count == 3
    assert labels(supervisor) == {ZERO: "0", "MIG-2": "0.1"}
