"""A real torch job profiles itself into the inbox; its steps are in the API and in the report."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.agents import agent_under, now_spec
from tests.e2e.running import PYTHON
from tests.waiting import wait_for

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("real_torch")]

TRAIN = Path(__file__).parent / "jobs" / "train_on_cpu.py"
#: schedule(wait=1, warmup=1, active=3): steps 0 and 1 are not profiled.
PROFILED = [2, 3, 4]


def test_the_steps_of_a_torch_job_are_in_the_api_and_in_the_latest_report(tmp_path: Path) -> None:
    with agent_under(tmp_path, now_spec(), {"INGEST__SETTLE_S": "1.0"}) as agent:
        inbox = agent.state / "inbox" / "cpu-job"
        subprocess.run((PYTHON, str(TRAIN), "0", str(inbox)), check=True, timeout=120)
        # A trace is said to be analysed once its report is there.
        wait_for(lambda: [trace.state for trace in agent.traces()] == ["analysed"], "it", 60)
        assert {row.step for row in agent.steps("&job=cpu-job")} == set(PROFILED)
        document = agent.latest("cpu-job")
        assert document is not None
        assert [row.step for row in document.steps] == PROFILED
        assert all(row.host_only and row.marker_ns for row in document.steps)  # no GPU here
        text = agent.text("/api/v1/report/latest?job=cpu-job", "text/plain")
        assert "no_device_records" in text
        (trace,) = agent.traces()
        assert (trace.job, trace.state, trace.reason) == ("cpu-job", "analysed", None)
        assert list(inbox.iterdir()) == []
