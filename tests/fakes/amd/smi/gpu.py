"""Invented GPUs behind the fake libamd_smi.so: what its calls say of a card, and how it moves."""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_char
from dataclasses import dataclass, replace
from typing import TypeAlias

from tests.fakes.amd.cards import Card, Values, metric_values, motions
from tests.fakes.amd.motion import Motion, Segment, Timeline
from tests.fakes.amd.places import place_in
from tests.fakes.amd.smi.bindings import Binding
from tests.fakes.amd.smi.scenario import Answers, GpuLayout

METRICS = "amdsmi_get_gpu_metrics_info"
MIB = 1 << 20
VENDOR_ID = 0x1002
MOST_PROCESSES = 64
#: The library's own resolution of the energy counter, in µJ; the unit is 2^-16 J.
RESOLUTION_UJ = 15.3
VIOLATION_STATUS_TAKES_US = 100_000
#: `AMDSMI_CLK_TYPE_GFX`, `_MEM`; `AMDSMI_TEMPERATURE_TYPE_EDGE`, `_HOTSPOT`, `_VRAM`;
#: `AMDSMI_TEMP_CRITICAL`, `_EMERGENCY` (and 0: current).
GFX_CLOCK, MEM_CLOCK = 0, 4
EDGE, HOTSPOT, VRAM = 0, 1, 2
CRITICAL, EMERGENCY = 5, 7

Fields: TypeAlias = Mapping[str, object]


class EnergyAnswer(ctypes.Structure):
    """The three numbers of `amdsmi_get_energy_count`, side by side."""

    _fields_ = [
        ("count", ctypes.c_uint64),
        ("resolution", ctypes.c_float),
        ("padding", ctypes.c_float),
        ("stamp", ctypes.c_uint64),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Where a processor stands among those of its card.

    Attributes:
        place: Its number; 0 is the one that speaks for the card.
        count: How many the card has.
        compute, memory: The modes.
        in_uuid: Whether the UUID tells it, as those of newer libraries do.
        says_ones: What it doesn't know it answers with all ones, not with "not supported".
    """

    place: int = 0
    count: int = 1
    compute: str = "SPX"
    memory: str = "NPS1"
    in_uuid: bool = False
    says_ones: bool = False


#: Numbers that other calls give too: call, key, structure, field; the metric, and which of it.
_ALSO: tuple[tuple[str, int, str, str, str, int], ...] = (
    ("amdsmi_get_power_info", 0, "amdsmi_power_info_t", "current_socket_power",
     "current_socket_power", 0),
    ("amdsmi_get_power_info", 0, "amdsmi_power_info_t", "average_socket_power",
     "average_socket_power", 0),
    ("amdsmi_get_clock_info", GFX_CLOCK, "amdsmi_clk_info_t", "clk", "current_gfxclk", 0),
    ("amdsmi_get_clock_info", MEM_CLOCK, "amdsmi_clk_info_t", "clk", "current_uclk", 0),
    ("amdsmi_get_gpu_activity", 0, "amdsmi_engine_usage_t", "gfx_activity",
     "average_gfx_activity", 0),
    ("amdsmi_get_gpu_activity", 0, "amdsmi_engine_usage_t", "umc_activity",
     "average_umc_activity", 0),
    ("amdsmi_get_temp_metric", EDGE, "", "", "temperature_edge", 0),
    ("amdsmi_get_temp_metric", HOTSPOT, "", "", "temperature_hotspot", 0),
    ("amdsmi_get_temp_metric", VRAM, "", "", "temperature_mem", 0),
    ("amdsmi_get_energy_count", 0, "", "count", "energy_accumulator", 0),
    ("amdsmi_get_energy_count", 0, "", "stamp", "system_clock_counter", 0),
    ("amdsmi_get_violation_status", 0, "amdsmi_violation_status_t", "acc_counter",
     "accumulation_counter", 0),
    ("amdsmi_get_violation_status", 0, "amdsmi_violation_status_t", "acc_ppt_pwr",
     "ppt_residency_acc", 0),
    ("amdsmi_get_violation_status", 0, "amdsmi_violation_status_t", "acc_socket_thrm",
     "socket_thm_residency_acc", 0),
)  # fmt: skip


class SmiGpu(Answers):
    """A processor of the fake library; its answers may be changed at any time.

    Attributes:
        binding: Whose structures they are.
        card: What it is, or is a part of.
        partition: Which part.
    """

    def __init__(
        self,
        layout: GpuLayout,
        binding: Binding,
        card: Card,
        partition: Partition,
        now_ns: Callable[[], int],
    ) -> None:
        super().__init__(layout)
        self.binding, self.card, self.partition, self._now_ns = binding, card, partition, now_ns

    @property
    def knows_the_card(self) -> bool:
        """Whether it answers for the whole card."""
        return self.partition.place == 0

    # ---- structures -----------------------------------------------------------------------

    def view(self, call: str, structure: str, key: int = 0) -> ctypes.Structure:
        """A structure that a call answers, to read or to change.

        A number that moves is overwritten by its movement: use `shows` for metrics.
        """
        return self.block(call, self.binding.structure(structure), key)

    @property
    def metrics(self) -> ctypes.Structure:
        """The metrics as they were set; what moves is not up to date here."""
        return self.view(METRICS, "amdsmi_gpu_metrics_t")

    def says(self, call: str, structure: str, fields: Fields, key: int = 0) -> None:
        """A call answers with these fields, the others being 0; not where the binding lacks it."""
        if call not in self.binding.symbols or not self.binding.has(structure):
            return
        block = self.answers(call, self.binding.structure(structure), key)
        known = {name for name, *_ in block._fields_}
        for name, value in fields.items():
            if name in known:
                setattr(block, name, value)

    def tells(self, call: str, width: int, value: int, key: int = 0) -> None:
        """A call answers with a number so many bytes wide."""
        if call in self.binding.symbols:
            self.answers(call, c_char * width, key)
            self._write(call, (0, width), value, key)

    def writes(self, call: str, text: str) -> None:
        """A call answers with a text."""
        if call in self.binding.symbols:
            self.answers(call, c_char * 96).value = text.encode()

    def says_all_ones(self, call: str, structure: str) -> None:
        """A call answers with nothing but "not available"."""
        if call in self.binding.symbols and self.binding.has(structure):
            block = self.answers(call, self.binding.structure(structure))
            ctypes.memset(ctypes.addressof(block), 0xFF, ctypes.sizeof(block))

    # ---- metrics --------------------------------------------------------------------------

    def place_of(self, metric: str, place: int = 0) -> tuple[int, int] | None:
        """Offset and width in bytes of a number of the metrics; None: this binding lacks it."""
        return place_in(self.binding.structure("amdsmi_gpu_metrics_t"), metric, place)

    def shows(self, **metrics: int | tuple[int, ...]) -> None:
        """The metrics say this from now on, and do not move; `xcp_stats.0.x` by `**{...}`."""
        with self.changing():
            for name, value in metrics.items():
                for place, number in enumerate(value if isinstance(value, tuple) else (value,)):
                    found = self.place_of(name, place)
                    assert found is not None, name
                    self.stops_at(METRICS, found[0])
                    self._write(METRICS, found, number)

    def _write(self, call: str, place: tuple[int, int], number: int, key: int = 0) -> None:
        offset, width = place
        start = GpuLayout.heap.offset + self.answer(call, key).offset + offset
        raw = (c_char * width).from_buffer(self.layout, start)
        raw.raw = (number % (1 << 8 * width)).to_bytes(width, "little")

    def lacks(self, *metrics: str) -> None:
        """The metrics say nothing of these any more: all ones in each number."""
        for name in metrics:
            count = 0
            while (found := self.place_of(name, count)) is not None:
                self.stops_at(METRICS, found[0])
                self._write(METRICS, found, -1)
                count += 1
            assert count, name

    def plays(
        self, *segments: Segment, origin_ns: int | None = None, repeats: bool = False
    ) -> None:
        """Values from an instant on; the last segment stays, or they go round and round.

        Args:
            segments: What happens.
            origin_ns: When the first begins, counters counting from 10^9 (energy) or 1000 there;
                None: now, and counters go on from where they are.
            repeats: Whether it begins anew after the last.
        """
        with self.changing():
            self._play(segments, origin_ns, repeats)

    def _play(self, segments: tuple[Segment, ...], origin_ns: int | None, repeats: bool) -> None:
        start_ns = self._now_ns() if origin_ns is None else origin_ns
        timeline = Timeline(segments=segments, origin_ns=start_ns, repeats=repeats)
        moving = list(motions(self.card, timeline))
        if origin_ns is None:
            moving = [self._continued(motion, start_ns) for motion in moving]
        values = _with_old_names(metric_values(self.card, segments[0]))
        moving += [m for motion in moving for m in _renamed(motion)]
        self._set_metrics(values, moving)
        self._set_also(values, moving)

    def _continued(self, motion: Motion, start_ns: int) -> Motion:
        if not motion.counts or motion.origin_ns != start_ns:
            return motion
        found = self.place_of(motion.name, motion.place)
        if found is None or not self._answers(METRICS):
            return motion
        before = self.motion_at(METRICS, found[0])
        return replace(motion, base=before.at(start_ns)) if before else motion

    def _answers(self, call: str, key: int = 0) -> bool:
        try:
            self.answer(call, key)
        except KeyError:
            return False
        return True

    def _set_metrics(self, values: Values, moving: list[Motion]) -> None:
        if not self._answers(METRICS):
            return
        for name, value in values.items():
            for place, number in enumerate(value if isinstance(value, tuple) else (value,)):
                if (found := self.place_of(name, place)) is not None:
                    self._write(METRICS, found, number)
        placed = [(self.place_of(m.name, m.place), m) for m in moving]
        self.moves(METRICS, [(*found, m) for found, m in placed if found is not None])

    def _set_also(self, values: Values, moving: list[Motion]) -> None:
        by_metric = {(m.name, m.place): m for m in moving}
        groups: dict[tuple[str, int], list[tuple[int, int, Motion]]] = {}
        for call, key, structure, name, metric, place in _ALSO:
            if not self._answers(call, key):
                continue
            at = self._place_of(structure, name)
            moved = groups.setdefault((call, key), [])
            if isinstance(value := values.get(metric), int):
                self._write(call, at, value, key)
            if (metric, place) in by_metric:
                moved.append((*at, by_metric[metric, place]))
        for (call, key), moved in groups.items():
            self.moves(call, moved, key)

    def _place_of(self, structure: str, name: str) -> tuple[int, int]:
        """Offset and width of a field; of a lone number without names."""
        if not name:
            return 0, 8
        block = self.binding.structure(structure) if structure else EnergyAnswer
        field = getattr(block, name)
        return field.offset, field.size

    # ---- what else a test changes ---------------------------------------------------------

    def freezes(self, at_ns: int) -> None:
        """The firmware measures nothing new from then on, while reads are stamped as before."""
        self.holds(METRICS, at_ns)

    def uses(self, used_bytes: int) -> None:
        """So much of the memory is in use."""
        used = self.view("amdsmi_get_gpu_vram_usage", "amdsmi_vram_usage_t")
        setattr(used, "vram_used", used_bytes // MIB)  # noqa: B010
        self._write("amdsmi_get_gpu_memory_usage", (0, 8), used_bytes)

    def limits(self, limit_w: float) -> None:
        """The power limit, in W."""
        cap = self.view("amdsmi_get_power_cap_info", "amdsmi_power_cap_info_t")
        setattr(cap, "power_cap", int(limit_w * 10**6))  # noqa: B010

    def has_errors(self, *, uncorrectable: int = 0, correctable: int = 0) -> None:
        """So many memory errors since the driver started."""
        count = self.view("amdsmi_get_gpu_total_ecc_count", "amdsmi_error_count_t")
        setattr(count, "uncorrectable_count", uncorrectable)  # noqa: B010
        setattr(count, "correctable_count", correctable)  # noqa: B010

    def runs(self, *processes: tuple[int, int]) -> None:
        """These processes are on it: pid and bytes of memory."""
        call = "amdsmi_get_gpu_process_list"
        one = self.binding.structure("amdsmi_proc_info_t")
        listed = self.block(call, one * MOST_PROCESSES)  # type: ignore[type-var]
        for slot, (pid, used_bytes) in zip(listed, processes, strict=False):
            slot.pid, slot.mem, slot.name = pid, used_bytes, b"python3"
            slot.memory_usage.vram_mem = used_bytes
        self.answer(call).bytes = ctypes.sizeof(one) * len(processes)


#: Names of before there were several dies, which the library fills in from the first.
_OLD_NAMES = {
    ("current_gfxclks", 0): ("current_gfxclk", "average_gfxclk_frequency"),
    ("current_socclks", 0): ("current_socclk", "average_socclk_frequency"),
}


def _with_old_names(values: Values) -> dict[str, int | tuple[int, ...]]:
    """The metrics with those that the library adds."""
    added = dict(values)
    for (name, place), others in _OLD_NAMES.items():
        if isinstance(value := values.get(name), tuple):
            added |= dict.fromkeys(others, value[place])
    return added


def _renamed(motion: Motion) -> Iterator[Motion]:
    for name in _OLD_NAMES.get((motion.name, motion.place), ()):
        yield replace(motion, name=name, place=0)
