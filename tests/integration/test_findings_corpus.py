"""Findings on the real traces: each code that must fire, and no other; no hardware is accused.

What must fire was judged by hand on each trace's waterfall and holders: DataLoader in the step of
`kineto2021`, eager launches of small kernels in `nccl_ddp`, `b200_vllm` and `ddp_memory`, the first
use of a kernel in `minitoy`, communication with little overlap in `act_checkpoint`. The others'
rows are all small but compute. None has samples, so no clock can be judged.
"""

from pathlib import Path

import pytest

from chopperd.model.report import ReportDocument
from chopperd.pipeline.reports import ReportOptions, report_files

pytestmark = pytest.mark.corpus

FINDINGS = {
    "hta_a100_cuda_sync_multistream": ("host.holder",),
    "hta_a100_nccl_ddp": ("launch.bound", "host.holder"),
    "hta_mi250_rocm62_minitoy": ("host.holder", "launch.bound"),
    "hta_mtia_inference": (),
    "hta_v100_ddp_memory": ("launch.bound",),
    "hta_v100_ns_absolute_ts": (),
    "kineto2021_v100_resnet50.pt.trace": ("data.wait", "launch.bound"),
    "tracelens_b200_vllm_eager": ("launch.bound",),
    "tracelens_h100_qwen15_05b": (),
    "tracelens_mi300x_compile_triton": (),
    "tracelens_mi300x_qwen15_05b": (),
    "tracelens_mi300x_resnet_act_checkpoint": ("comm.exposed", "copy.exposed"),
    "cpu_ddp_rank0.pt.trace": (),
    "cpu_fsdp1_rank0.pt.trace": (),
    "cpu_fsdp2_rank0.pt.trace": (),
    "cpu_ondemand_5_iterations": (),
}


def report_of(shared: Path, *names: str) -> ReportDocument:
    paths = [shared / "traces" / f"{name}.json.gz" for name in names]
    return report_files(paths, samples=None, options=ReportOptions())


@pytest.mark.parametrize("name", FINDINGS)
def test_each_real_trace_has_the_findings_that_its_rows_give(shared: Path, name: str) -> None:
    document = report_of(shared, name)
    assert tuple(each.code for each in document.findings) == FINDINGS[name]
    step_ns = document.summary.step_ns if document.summary else None
    for each in document.findings:
        assert each.bound_ns is not None
        assert step_ns is not None
        assert 0 < each.bound_ns <= step_ns
        assert each.evidence


def test_what_a_faster_network_would_not_give_back_is_no_finding(shared: Path) -> None:
    """In these DDP steps the host is late for nearly all of the exposed communication."""
    for name in ("hta_a100_nccl_ddp", "hta_v100_ddp_memory"):
        assert "comm.exposed" not in {each.code for each in report_of(shared, name).findings}


def test_the_loader_and_the_longest_holders_are_named(shared: Path) -> None:
    (data, *_) = report_of(shared, "kineto2021_v100_resnet50.pt.trace").findings
    assert any("DataLoader" in each for each in data.evidence)
    (launches, holder) = report_of(shared, "hta_a100_nccl_ddp").findings
    assert any("aten::batch_norm" in each for each in launches.evidence)
    assert "aten::unflatten_dense_tensors" in holder.title
