"""Real FSDP jobs of torch on the CPU, from the job to the report: which version, what memory."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.running import PYTHON, Chopperd

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("real_torch")]

JOB = Path(__file__).parent / "jobs" / "fsdp_on_cpu.py"
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("version", ["1", "2"])
def test_fsdp_is_recognised_and_memory_of_the_cpu_is_none_of_a_device(
    chopperd: Chopperd, version: str
) -> None:
    command = (*TORCHRUN, str(JOB), version, "traces")
    done = subprocess.run(
        command, cwd=chopperd.folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    traces = sorted((chopperd.folder / "traces").iterdir())
    assert [b'"[memory]"' in path.read_bytes() for path in traces] == [True, True]
    document = chopperd.document("report", *traces)
    assert document.framework.name == f"fsdp{version}"
    assert document.memory == ()
    text = chopperd.run("report", *traces).stdout
    assert f"FSDP AND MEMORY  fsdp{version}\nno device memory in the trace" in text
