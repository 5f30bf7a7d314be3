"""Layout of the memory shared by sampler and readers; no reading or writing here.

Every field is 8 bytes wide and aligned, so that one store writes it whole, but for the clocks of
dies. In order: header, description (JSON), clock triples, one status block a GPU, one ring of
records a GPU.
"""

from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from chopperd.model.devices import MOST_DIES, STATE_FIELDS, GpuInfo, ReadScope
from chopperd.model.kinds import CAUSES
from chopperd.model.samples import VALUE_COLUMNS

Records: TypeAlias = npt.NDArray[np.void]

MAGIC: Final = int.from_bytes(b"chopprng", "little")
LAYOUT_VERSION: Final = 7

#: Room for the description; 100 GPUs need about 35 KiB.
DESCRIPTION_BYTES: Final = 128 * 1024
TRIPLE_CAPACITY: Final = 1024

#: The scope codes in records and status blocks.
SCOPES: Final = (ReadScope.FAST, ReadScope.FULL)


class SamplerState(IntEnum):
    """State of the sampler, as it last reported it.

    `CHANGED`: it ends so that a successor finds the GPUs that came or went. `SILENT`: no GPU
    answered the last reads.
    """

    STARTING = 0
    RUNNING = 1
    STOPPING = 2
    STOPPED = 3
    FAILED = 4
    CHANGED = 5
    SILENT = 6


class GpuState(IntEnum):
    """Whether a GPU answers, as the sampler last found."""

    UNSEEN = 0
    UP = 1
    LOST = 2


class Pace(IntEnum):
    """Why a GPU is read at its present period; `BURST` and `QUIET` are not used yet."""

    ASKED = 0
    BUDGET = 1
    IDLE = 2
    BURST = 3
    QUIET = 4


def _words(names: str) -> list[tuple[str, type[np.int64]]]:
    return [(name, np.int64) for name in names.split()]


#: `generation` counts the writers: one that finds another number than its own is superseded.
#: `identity` is the same in a larger memory file that took this one's place; `slots_wanted` is the
#: room that a writer did not find.
HEADER: Final = np.dtype(
    _words(
        "magic layout_version generation state writer_pid gpu_slots capacity triples_written "
        "description_sequence description_bytes identity slots_wanted"
    )
)

GENERATION_WORD: Final = (HEADER.names or ()).index("generation")

#: `sequence` is 1 + the number of the triple or record since the ring was made, written last; it
#: is 0 while the slot is being written.
TRIPLE: Final = np.dtype(_words("sequence unix_ns mono_ns boot_ns"))

#: In `RECORD["die_clocks_mhz"]`: the die has no clock, or there is none of this number.
NO_DIE: Final = 65_535

#: `t_mono_ns` is the middle of the driver call, `late_ns` how long after its deadline it began.
#: With clocks of dies, `sm_clock_mhz` is NaN here; readers get that of the governing die
#: (`records.whole_records`).
RECORD: Final = np.dtype(
    [
        *_words("sequence t_mono_ns span_ns late_ns scope causes"),
        *((name, np.float64) for name in VALUE_COLUMNS),
        ("limited_ns", np.float64, (len(CAUSES),)),
        ("die_clocks_mhz", np.uint16, (MOST_DIES,)),
    ]
)

#: `call_started_mono_ns` is 0 while no driver call is in progress.
_STATUS_HEAD: Final = _words(
    "call_started_mono_ns call_scope state written last_mono_ns ticks_count missed_count "
    "transient_count unexpected_count losses_count driver_ns driver_full_ns asked_period_ns "
    "period_ns pace"
)
STATUS_HEAD_COUNT: Final = len(_STATUS_HEAD)

#: Room for processes of a GPU, and for the text of its fault in bytes.
MOST_PROCESSES: Final = 64
TROUBLE_BYTES: Final = 256
#: The sensors whose timing is looked for, in the order of `SLOW_STATE["sensor_period_ns"]`.
TIMED_SENSORS: Final = ("sm_clock_mhz", "power_w", "energy_j")

#: Values that are written seldom: -1 means "not known" in whole numbers, NaN in others.
#: `sequence` is odd while it is being written, `state_sequence` while the values of a full read
#: are: these have a writer of their own.
SLOW_STATE: Final = np.dtype(
    [
        *_words("sequence state_sequence state_mono_ns"),
        ("state", np.float64, (len(STATE_FIELDS),)),
        ("sensor_period_ns", np.int64, (len(TIMED_SENSORS),)),
        ("sensor_window_ns", np.int64, (len(TIMED_SENSORS),)),
        *_words("driver_rare_ns invalid_count processes_mono_ns processes_count"),
        ("processes", np.int64, (MOST_PROCESSES, 3)),
        ("trouble_bytes", np.int64),
        ("trouble", np.uint8, (TROUBLE_BYTES,)),
    ]
)
STATUS: Final = np.dtype([*_STATUS_HEAD, ("slow_state", SLOW_STATE)])
SLOW_STATE_OFFSET: Final = STATUS.itemsize - SLOW_STATE.itemsize


def offset_of(block: "np.dtype[np.void]", name: str) -> int:
    """Return where a field of a block begins, in bytes."""
    if block.fields is None:
        raise ValueError("it has no fields")
    return int(block.fields[name][1])


#: Start of the description, the ring of triples and the status blocks, in bytes.
DESCRIPTION_OFFSET: Final = HEADER.itemsize
TRIPLES_OFFSET: Final = DESCRIPTION_OFFSET + DESCRIPTION_BYTES
STATUS_OFFSET: Final = TRIPLES_OFFSET + TRIPLE_CAPACITY * TRIPLE.itemsize


class RingLayout(NamedTuple):
    """Number of GPU slots, and of records in each ring: with them, sizes in bytes."""

    gpu_slots: int
    capacity: int

    @property
    def records_offset(self) -> int:
        """Start of the rings of records."""
        return STATUS_OFFSET + self.gpu_slots * STATUS.itemsize

    @property
    def total_bytes(self) -> int:
        """Size of the whole memory."""
        return self.records_offset + self.gpu_slots * self.capacity * RECORD.itemsize


class RingDescription(Struct, frozen=True, kw_only=True):
    """Description of what is sampled; each sampler process writes it once, as JSON."""

    gpus: tuple[GpuInfo, ...] = ()  # GPU of each slot, in slot order
    backend: str = ""  # name of the back end
    driver: str | None = None  # driver version, where there is one
    simulated: bool = False  # whether the values come from a simulation
    #: Why this back end was chosen, for people; None where the user named it.
    chosen: str | None = None
    failure: str | None = None  # why the sampler could not start; None if it did
