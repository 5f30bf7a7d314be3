"""The metrics of a GPU from captures: sums over the agent's lifetime, shown while one is recent."""

from typing import Final

from chopperd.export.gpu_metrics import CAUSE
from chopperd.export.metric import GPU, Label, Profile, metric, per_traced, per_traced_by
from chopperd.model.classes import KERNEL_CLASSES
from chopperd.units import seconds_from_ns

ROW: Final = Label(
    "row",
    (
        "compute_at_ref",
        "dvfs_loss",
        "compute_unsampled",
        "exposed_comm",
        "exposed_copy",
        "unknown",
        "idle_launch_call",
        "idle_allocator",
        "idle_data",
        "idle_sync",
        "idle_launch_prep",
        "idle_other",
    ),
)
CLASS: Final = Label("class", tuple(kind.label for kind in KERNEL_CLASSES))

TRACED_METRICS: Final = (
    metric(
        "traced_window_seconds_total",
        "seconds",
        Profile.STANDARD,
        "Traced time by where it went; the rows sum to the traced time",
        per_traced_by(lambda traced: traced.window_s),
        GPU,
        ROW,
    ),
    metric(
        "traced_lost_seconds_total",
        "seconds",
        Profile.STANDARD,
        "Traced compute time lost against the reference clock, by cause: a ceiling",
        per_traced_by(
            lambda traced: {cause.label: lost_s for cause, lost_s in traced.lost_s.items()}
        ),
        GPU,
        CAUSE,
    ),
    metric(
        "traced_kernel_seconds_total",
        "seconds",
        Profile.FULL,
        "Traced kernel time by class; kernels side by side count each",
        per_traced_by(lambda traced: traced.kernel_s),
        GPU,
        CLASS,
    ),
    metric(
        "traced_kernel_lost_seconds_total",
        "seconds",
        Profile.FULL,
        "Traced kernel time lost against the reference clock, by class, where the clock is known",
        per_traced_by(lambda traced: traced.kernel_lost_s),
        GPU,
        CLASS,
    ),
    metric(
        "traced_last_capture_timestamp_seconds",
        "seconds",
        Profile.STANDARD,
        "When the newest capture ended, Unix time; traced series go 15 min later",
        per_traced(lambda traced: seconds_from_ns(traced.last_capture_unix_ns)),
        GPU,
    ),
)
