"""What a runtime runs itself, and what can't be told."""

from typing import Final

from chopperd.model.kinds import KernelClass
from tests.unit.traces.kernels.named.origin import Named

OTHERS: Final = (
    Named(
        "copies and fills that HIP runs as kernels (rocprofiler-sdk writes them as such)",
        KernelClass.MEMCPY,
        ("__amd_rocclr_copyBuffer.kd", "__amd_rocclr_copyBufferAligned", "__amd_rocclr_copyImage"),
    ),
    Named(
        "HIP", KernelClass.MEMSET, ("__amd_rocclr_fillBufferAligned", "__amd_rocclr_fillImage.kd")
    ),
    Named(
        "names that say nothing of what they do: they stay apart instead of being guessed",
        KernelClass.OTHER,
        (
            "k1",
            "fwdbwd",
            "_fwd_kernel",
            "computeUnitBusy",
            "main_kernel",
            "fusion_12",
            "triton__0d1d23",
            "_hc_split_pre_kernel",
            "_prepare_pos_seq_lens_kernel.kd",
            "",
        ),
    ),
)
