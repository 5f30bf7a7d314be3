"""What a load's lines are taken for."""

import pytest

from chopperd.errors import BackendUnavailableError
from chopperd.selftest.protocol import Done, Failed, LoadPlan, Pulses, Ready, Said, decoded, log_of

READY = Ready(device="GPU", torch="2", dtype="bfloat16", size=8192)
PULSES = Pulses(start_mono_ns=[1], end_mono_ns=[2])


def test_a_line_of_another_program_is_no_load() -> None:
    with pytest.raises(BackendUnavailableError, match="Warning: something"):
        decoded("Warning: something\n")


def test_a_load_that_failed_says_why() -> None:
    with pytest.raises(BackendUnavailableError, match="no load: torch sees no CUDA device"):
        log_of([Failed(reason="torch sees no CUDA device")])


@pytest.mark.parametrize("said", [[], [READY], [READY, PULSES], [PULSES, Done()]])
def test_a_load_that_ended_early_is_none(said: list[Said]) -> None:
    with pytest.raises(BackendUnavailableError, match="ended before"):
        log_of(said)


def test_a_whole_load_is_put_together() -> None:
    log = log_of([READY, PULSES, Done()])
    assert (log.ready, log.phases, log.pulses) == (READY, [], PULSES)


def test_a_plan_lasts_as_long_as_its_phases_and_pulses() -> None:
    # 2 rounds of 2 operands, 2 + 10 s each, and 12 pulses of 0.3 to 0.48 s, on and off.
    assert LoadPlan().lasts_s == pytest.approx(2 * 2 * 12 + 12 * 0.39 * 2)
