"""Traces find their GPUs by their processes, on a fake NVIDIA driver that lists them.

As `torchrun` and `torch.profiler` leave a node of equal GPUs: nothing in a trace but pids says
which GPU it is of, and every rank has a context on GPU 0 beside its own.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from chopperd.model.report import ReportDocument
from chopperd.sampling.process_table import descendants
from chopperd.store.recorder.reader import RecordedSamples
from chopperd.store.samples.files import read_samples
from chopperd.units import NS_PER_S
from tests.e2e.agents import agent_under, nvml_environment
from tests.e2e.jobs.gpu_job import STEP_NS, STEPS, trace
from tests.e2e.running import PYTHON, Chopperd
from tests.fakes.nvml.fixtures import SCENARIO_VARIABLE
from tests.fakes.nvml.scenario import Scenario
from tests.waiting import wait_for

JOB = Path(__file__).parent / "jobs" / "two_ranks.py"
CONTEXT, MODEL = 400 << 20, 60 << 30
NODE = os.uname().nodename


@contextmanager
def ranks(count: int) -> Iterator[list[int]]:
    """So many idle processes with the environment that torchrun gives its workers."""
    with ExitStack() as stack:
        pids = []
        for rank in range(count):
            env = {"LOCAL_RANK": str(rank), "PATH": os.environ["PATH"]}
            one = stack.enter_context(subprocess.Popen(("sleep", "300"), env=env))
            stack.callback(one.kill)
            pids.append(one.pid)
        yield pids


def listed(scenario: Scenario, pids: Sequence[int]) -> None:
    """Have the driver list each process on a GPU of its own, and all of them on the first."""
    on_first = [(pid, MODEL if rank == 0 else CONTEXT) for rank, pid in enumerate(pids)]
    scenario.aside(scenario.gpus[0]).runs(*on_first)
    for rank, pid in enumerate(pids[1:], start=1):
        scenario.aside(scenario.gpus[rank]).runs((pid, MODEL))


def as_torch_writes_it(origin_ns: int, rank: int, pid: int, world_size: int) -> bytes:
    """The trace of one rank, without a word on which GPU its device is."""
    document = trace(origin_ns, rank, "", world_size)
    del document["chopperd_devices"]
    text = json.dumps({**document, "host_name": NODE, "trace_id": f"of-{pid}"})
    return text.replace('"pid": 900', f'"pid": {pid}').encode()


def dropped_in(
    library: Path, folder: Path, scenario: Scenario, pids: Sequence[int]
) -> ReportDocument:
    """The report of an agent into whose inbox these ranks' traces were dropped."""
    environment = nvml_environment(library, scenario.path)
    with agent_under(folder, None, environment=environment) as agent:
        samples = RecordedSamples(agent.state / "recorder")

        def processes() -> int:
            now_ns = time.time_ns()
            found = samples.between(now_ns - 60 * NS_PER_S, now_ns)
            return 0 if found is None else len(found.processes)

        wait_for(lambda: processes() >= len(pids), "the processes to be recorded", 30)
        origin_ns = time.time_ns()
        time.sleep(STEPS * STEP_NS / NS_PER_S + 0.5)
        for rank, pid in enumerate(pids):
            content = as_torch_writes_it(origin_ns, rank, pid, len(pids))
            agent.drop("job", f"rank{rank}.json", content)

        def document() -> ReportDocument | None:
            latest = agent.latest("job")
            return latest if latest is not None and len(latest.traces) == len(pids) else None

        wait_for(lambda: document() is not None, "the report on all ranks", 90)
        found = document()
        assert found is not None
        return found


@pytest.fixture
def library(nvml_library: Callable[[], Path]) -> Path:
    return nvml_library()


def test_eight_equal_gpus_are_told_by_the_processes_of_the_job(
    library: Path, tmp_path: Path
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", 8)
    with ranks(8) as pids:
        listed(scenario, pids)
        document = dropped_in(library, tmp_path, scenario, pids)
    mapped = [(each.rank, each.gpu, each.mapping) for each in document.devices]
    assert mapped == [(rank, str(rank), "process") for rank in range(8)]
    assert all(row.clock is not None for row in document.totals)
    assert "device_unmapped" not in {note.code for note in document.notes}
    assert {row.peers.n for row in document.totals if row.peers} == {8}


def test_an_agent_that_sees_no_process_of_the_job_says_why_no_gpu_is_known(
    library: Path, tmp_path: Path
) -> None:
    """As in a pod without the host's pid namespace: the driver lists pids that are not there."""
    scenario = Scenario(tmp_path / "scenario.bin", 2)
    pids = [4_190_001, 4_190_002]  # above the largest pid of Linux is 4,194,304
    listed(scenario, pids)
    document = dropped_in(library, tmp_path, scenario, pids)
    assert [each.gpu for each in document.devices] == [None, None]
    texts = [note.text for note in document.notes if note.code == "device_unmapped"]
    assert len(texts) == 2
    assert f"its process {pids[0]} of host {NODE} is not among those that can be seen" in texts[0]
    assert "hostPID" in texts[0]


def rank_pids(of: int) -> dict[int, int]:
    """The pids, as this test sees them, of a job's workers by their LOCAL_RANK."""
    found = {}
    for pid in descendants(of):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ranks = [each for each in variables if each.startswith(b"LOCAL_RANK=")]
        if ranks and b"two_ranks" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found[int(ranks[0].partition(b"=")[2])] = pid
    return found


@pytest.mark.torch
@pytest.mark.usefixtures("real_torch")
@pytest.mark.parametrize("wrapper", [(), ("unshare", "-p", "-f", "--mount-proc")])
def test_a_real_job_of_two_ranks_is_told_by_its_processes_also_in_a_pid_namespace(
    library: Path, tmp_path: Path, wrapper: tuple[str, ...]
) -> None:
    scenario = Scenario(tmp_path / "scenario.bin", 2)
    environment = {
        "LD_LIBRARY_PATH": str(library.parent),
        SCENARIO_VARIABLE: str(scenario.path),
        "CHOPPERD_SAMPLING__RECORD_DRIVER_BUDGET_RATIO": "0.5",
    }
    chopperd = Chopperd.under(tmp_path, environment)
    folder = chopperd.folder
    torchrun = (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    options = ("--backend", "nvml", "-o", "samples.csv", "--format", "json")
    recording = chopperd.start("record", *options, "--", *wrapper, *torchrun, str(JOB), str(folder))
    wait_for(lambda: all((folder / f"ready-{rank}").exists() for rank in (0, 1)), "torch", 120)
    pids = rank_pids(recording.pid)
    assert pids.keys() == {0, 1}
    listed(scenario, [pids[0], pids[1]])
    (folder / "go").touch()
    stdout, stderr = recording.communicate(timeout=120)
    assert recording.returncode == 0, stderr
    document = msgspec.json.decode(stdout[stdout.index("{") :], type=ReportDocument)
    mapped = sorted((d.rank or 0, d.gpu, d.mapping) for d in document.devices)
    assert mapped == [(0, "0", "process"), (1, "1", "process")]
    own_pids = {d.pid for d in document.devices}
    assert (own_pids == set(pids.values())) is (not wrapper), "pids of the namespace"
    # The recording knows it too, and so does a later report.
    kept = {row.pid: row for row in read_samples(folder / "samples.csv").processes}
    assert {kept[pid].own_pid for pid in pids.values()} == own_pids
    traces = sorted(folder.glob("rank*.json"))
    later = chopperd.document("report", *traces, "--samples", "samples.csv")
    assert [d.mapping for d in later.devices] == ["process", "process"]
