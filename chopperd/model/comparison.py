"""Runs compared (`chopperd.compare/1`): what `compare --format json` and `GET /compare` give.

Published names, as in `chopperd.model.report`; `None` is "unknown".

Source: DESIGN.md section 2, "Comparing runs".
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from chopperd.model.report import Note

SCHEMA: Final = "chopperd.compare/1"

#: The figure that is the headline, and how rows of the waterfall begin.
STEP: Final = "step_ns"
ROW: Final = "waterfall_ns/"

PairedBy = Literal["uuid", "rank", "none"]
#: What may differ between runs only where the user allows it.
Allowed = Literal["gpus", "reference", "power-limit"]
#: "higher" and "lower" are of the later side against A, declared; "same": the whole interval is
#: within the practical margin; "too_few": fewer than 50 effective steps on a side.
Verdict = Literal["higher", "lower", "same", "unresolved", "too_few"]


class Difference(Struct, frozen=True, kw_only=True):
    """One figure of two sides, in means of a step and GPU, in the unit that its name ends in.

    `change` is (b - a) / a, of a row of the waterfall (`waterfall_ns/...`) over A's step time;
    `low` and `high` are its own 95 % interval. `floor` is the same between the halves of A: no
    smaller change is declared, nor one under `margin`. `p_corrected` is Holm's over all figures but
    the step time. `effective_...` is the number of steps over their correlation time.
    """

    name: str
    a: float
    b: float
    change: float | None
    low: float | None
    high: float | None
    margin: float
    floor: float | None
    p: float | None
    p_corrected: float | None
    effective_a: float
    effective_b: float
    verdict: Verdict

    @property
    def differs(self) -> bool:
        """Whether a difference is declared."""
        return self.verdict in {"higher", "lower"}


class PairedGpu(Struct, frozen=True, kw_only=True):
    """One GPU in both runs: its labels and the means of its busy clock."""

    uuid: str
    gpu_a: str | None
    gpu_b: str | None
    busy_mhz_a: float | None
    busy_mhz_b: float | None


class Side(Struct, frozen=True, kw_only=True):
    """One side of a comparison; `figures` are means of a step and GPU, by name."""

    name: str  # A, B, ...
    traces: tuple[str, ...]
    runs: int
    steps: int  # in the means
    warm_up_steps: int  # leading steps that were left out
    partial_steps: int  # partial and last ones, that were left out likewise
    gpus: int
    reference_mhz: float | None
    power_limit_w: float | None
    figures: Mapping[str, float]


#: Verdicts on memory that asks the driver for nothing from step to step.
STEADY: Final = frozenset({"deterministic", "segments_steady"})
#: What FSDPv2 is said to have over FSDPv1, and what memory is said to do to the clock.
ClaimName = Literal[
    "steadier_allocation",
    "less_memory",
    "higher_clock",
    "steadier_clock",
    "shorter_step",
    "less_energy",
    "memory_and_clock_move_together",
]


class EvidenceSide(Struct, frozen=True, kw_only=True):
    """The allocation of one side: verdicts by number of ranks, and medians over ranks."""

    side: str  # its name
    framework: str  # "fsdp1", "fsdp2"
    verdicts: Mapping[str, int]
    cv_reserved: float | None
    program_ratio: float | None
    determinism_ratio: float | None
    rho: Mapping[str, float]  # of figures with the clock over its own steps, where known
    sources: tuple[str, ...]  # of the figures of memory


class Claim(Struct, frozen=True, kw_only=True):
    """A claim and the figures that are for it, against it, or leave it open, by name.

    A name is that of a figure of the comparison, "verdicts", "cv_reserved" or "determinism_ratio"
    of the sides, or "SIDE/FIGURE": how a figure goes with the clock over that side's own steps.
    """

    name: ClaimName
    supports: tuple[str, ...]
    contradicts: tuple[str, ...]
    open: tuple[str, ...]


class Evidence(Struct, frozen=True, kw_only=True):
    """What a run of FSDPv1 and one of FSDPv2 say; `confounders`: what else differs, or may."""

    fsdp1: EvidenceSide
    fsdp2: EvidenceSide
    claims: tuple[Claim, ...]
    confounders: tuple[Note, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """A side compared with A: the step time, then all other figures that both have."""

    name: str  # of the side
    paired_by: PairedBy
    by_runs: bool  # whether runs are the unit, as there are three or more a side
    step: Difference
    figures: tuple[Difference, ...]
    #: How many times longer both sides would have to be recorded for 50 effective steps.
    record_times: int | None
    gpus: tuple[PairedGpu, ...] = ()
    evidence: Evidence | None = None  # where one side is of FSDPv1 and one of FSDPv2


class ComparisonDocument(Struct, frozen=True, kw_only=True):
    """All sides, each after the first compared with it; `knee` names one of three or more.

    The knee is the side that lies farthest below the straight line from the highest to the lowest
    power limit, in limit and step time: a lower limit costs more from there on.
    """

    schema: str
    version: str
    simulated: bool
    sides: tuple[Side, ...]
    comparisons: tuple[Comparison, ...]
    knee: str | None
    notes: tuple[Note, ...]
