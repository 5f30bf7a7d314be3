"""One GPU in a fake sysfs: its files, what they say, and how that moves."""

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.fakes.amd.cards import ABSENT_16, Card, metric_values, motions
from tests.fakes.amd.motion import Motion, Segment, Timeline
from tests.fakes.amd.sysfs import files
from tests.fakes.amd.sysfs.attributes import ALL_ATTRIBUTES, AttributeTable
from tests.fakes.amd.sysfs.metrics import MetricsBlock, new_block

#: `hwmon` of the kernel's: label, what its critical and emergency limits are above the card's.
_SENSORS = (("edge", -5, 0), ("junction", 0, 5), ("mem", 5, 10))


class SysfsCard:
    """A GPU's folder; change it at any time, and let the tree advance.

    Attributes:
        card: What it is.
        folder: Its device's (`/sys/class/drm/card0/device`).
        hwmon: Its sensors' (`hwmon/hwmon3` in there).
        metrics: What `gpu_metrics` says.
    """

    def __init__(
        self, folder: Path, card: Card, number: int, now_ns: Callable[[], int],
        attributes: AttributeTable = ALL_ATTRIBUTES,
    ) -> None:  # fmt: skip
        self.card, self.folder = card, folder
        self.hwmon = folder / "hwmon" / f"hwmon{number + 3}"
        self.metrics: MetricsBlock = new_block(card.metrics_version, attributes)
        self._now_ns = now_ns
        self._timeline = Timeline(segments=(Segment(),))
        self._number, self._used_bytes, self._limit_w = number, 288 << 20, float(card.limit_w)
        self._lock = threading.RLock()
        self._gone = False
        self._broken: set[Path] = set()
        self._cut: dict[Path, int] = {}
        self._written: dict[Path, str | bytes] = {}
        self._write_fixed()
        self.plays(Segment(power_w=20 if card.apu else 500), origin_ns=0)

    # ---- what it says ---------------------------------------------------------------------

    def plays(
        self, *segments: Segment, origin_ns: int | None = None, repeats: bool = False
    ) -> None:
        """Values from an instant on; the last segment stays, or they go round and round.

        Args:
            segments: What happens.
            origin_ns: When the first begins, where counters are at their first values; None: now,
                and counters go on from where they are.
            repeats: Whether it begins anew after the last.
        """
        start_ns = self._now_ns() if origin_ns is None else origin_ns
        timeline = Timeline(segments=segments, origin_ns=start_ns, repeats=repeats)
        with self._lock:
            moving = list(motions(self.card, timeline))
            if origin_ns is None:
                moving = [self._continued(motion, start_ns) for motion in moving]
            self._timeline = timeline
            self.metrics.plays(metric_values(self.card, segments[0]), moving)
            self.write()

    def _continued(self, motion: Motion, start_ns: int) -> Motion:
        before = self.metrics.motion_of(motion.name, motion.place)
        if not motion.counts or motion.origin_ns != start_ns or before is None:
            return motion
        return replace(motion, base=before.at(start_ns))

    def shows(self, **metrics: int | tuple[int, ...]) -> None:
        """The metrics say this from now on, and do not move; `xcp_stats.0.x` by `**{...}`."""
        with self._lock:
            for name, value in metrics.items():
                self.metrics.shows(name, value)
            self.write()

    def lacks(self, *metrics: str) -> None:
        """The metrics say nothing of these any more: all ones in each number."""
        with self._lock:
            for name in metrics:
                self.metrics.lacks(name)
            self.write()

    def freezes(self, at_ns: int) -> None:
        """The firmware measures nothing new from then on, while reads are stamped as before."""
        with self._lock:
            self.metrics.held_ns = at_ns
            self.write()

    def uses(self, used_bytes: int) -> None:
        """So much of the memory is in use."""
        self._used_bytes = used_bytes
        self._put("mem_info_vram_used", f"{used_bytes}\n")

    def limits(self, limit_w: float) -> None:
        """The power limit, in W."""
        self._limit_w = limit_w
        self._put(self.hwmon / "power1_cap", f"{int(limit_w * 10**6)}\n")

    # ---- faults ---------------------------------------------------------------------------

    def fails(self, name: str, code: int = errno.ENOENT) -> None:
        """A file can't be opened or read; by its path in the device's folder."""
        path = self.folder / name
        with self._lock:
            if path in self._broken:
                files.heal(path)
            self._broken.add(path)
            files.fail(path, code)

    def heals(self, name: str) -> None:
        """A file is as before."""
        path = self.folder / name
        with self._lock:
            if path in self._broken:
                files.heal(path)
                self._broken.discard(path)
            self._cut.pop(path, None)
            self._written.pop(path, None)
            self._write_fixed()
            self.write()

    def cuts(self, name: str, to_bytes: int) -> None:
        """A file holds no more than its first bytes."""
        with self._lock:
            self._cut[self.folder / name] = to_bytes
            self._written.pop(self.folder / name, None)
            files.cut(self.folder / name, to_bytes)

    def goes(self) -> None:
        """Nothing can be read any more by whom has a file open, and nothing is written."""
        with self._lock:
            self._gone = True
            for path in self.folder.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    files.cut(path, 0)

    # ---- files ----------------------------------------------------------------------------

    def write(self) -> None:
        """What moves is as at this instant."""
        with self._lock:
            if self._gone:
                return
            now_ns = self._now_ns()
            if not self.card.guest:
                self._put("gpu_metrics", self.metrics.at(now_ns))
            self._write_moving(self._segment(now_ns))

    def _segment(self, now_ns: int) -> Segment:
        places = tuple(range(len(self._timeline.segments)))
        lengths_ns = self._timeline.lengths_ns
        which = Motion(
            name="", levels=places, lengths_ns=lengths_ns, counts=False,
            origin_ns=self._timeline.origin_ns, repeats=self._timeline.repeats,
        )  # fmt: skip
        return self._timeline.segments[which.at(now_ns)]

    def _put(self, name: str | Path, content: str | bytes) -> None:
        path = self.folder / name
        if path in self._broken:
            return
        if (most := self._cut.get(path)) is not None:
            content = content[:most]
        if self._written.get(path) != content:
            files.write(path, content)
            self._written[path] = content

    def _write_moving(self, segment: Segment) -> None:
        clock_mhz = segment.clock_mhz(0)
        mem_mhz = segment.mem_clock_mhz or self.card.mem_clock_mhz
        self._put("gpu_busy_percent", f"{segment.activity_percent}\n")
        self._put("mem_busy_percent", f"{segment.memory_activity_percent}\n")
        self._put("pp_dpm_sclk", _levels(clock_mhz, self.card.clock_max_mhz))
        self._put("pp_dpm_mclk", _levels(mem_mhz, self.card.mem_clock_mhz))
        self._put(self.hwmon / "freq1_input", f"{(clock_mhz or 0) * 10**6}\n")
        self._put(self.hwmon / "freq2_input", f"{mem_mhz * 10**6}\n")
        for kind in {"both": ("input", "average"), "none": (), "average": ("average",)}.get(
            self.card.power, ("input",)
        ):
            self._put(self.hwmon / f"power1_{kind}", f"{segment.power_w * 10**6}\n")
        degrees = (
            segment.temperature_c - 10, segment.temperature_c, segment.memory_temperature_c,
        )  # fmt: skip
        for number, celsius in enumerate(degrees, 1):
            if number > 1 or self.card.has_edge:
                self._put(self.hwmon / f"temp{number}_input", f"{celsius * 1000}\n")

    def _write_fixed(self) -> None:
        card = self.card
        for name, text in {
            "vendor": "0x1002", "device": f"0x{card.device_id:04x}",
            "revision": f"0x{card.revision_id:02x}", "class": "0x120000",
            "unique_id": f"{card.unique_id:016x}", "product_name": card.name,
            "numa_node": str(self._number // 4), "mem_info_vram_total": str(card.vram_bytes),
            "mem_info_vram_used": str(self._used_bytes), "mem_info_vram_vendor": "hynix",
            "uevent": f"DRIVER=amdgpu\nPCI_CLASS=120000\nPCI_ID=1002:{card.device_id:04X}\n"
                      f"PCI_SLOT_NAME={card.bdf}",
        }.items():  # fmt: skip
            self._put(name, f"{text}\n")
        self._put(self.hwmon / "name", "amdgpu\n")
        self._put(self.hwmon / "freq1_label", "sclk\n")
        self._put(self.hwmon / "freq2_label", "mclk\n")
        if card.power != "none":
            self._put(self.hwmon / "power1_label", "PPT\n")
        if card.limit_w and not card.guest:
            self._put(self.hwmon / "power1_cap", f"{int(self._limit_w * 10**6)}\n")
            self._put(self.hwmon / "power1_cap_default", f"{card.limit_default_w * 10**6}\n")
            self._put(self.hwmon / "power1_cap_max", f"{card.limit_default_w * 10**6}\n")
            self._put(self.hwmon / "power1_cap_min", "0\n")
        self._write_sensors()

    def _write_sensors(self) -> None:
        critical = (self.card.critical_c, self.card.critical_c, self.card.memory_critical_c - 5)
        for number, (label, at_c, worst_c) in enumerate(_SENSORS, 1):
            if number == 1 and not self.card.has_edge:
                continue
            base_c = critical[number - 1]
            self._put(self.hwmon / f"temp{number}_label", f"{label}\n")
            self._put(self.hwmon / f"temp{number}_crit", f"{(base_c + at_c) * 1000}\n")
            self._put(self.hwmon / f"temp{number}_emergency", f"{(base_c + worst_c) * 1000}\n")


def _levels(now_mhz: int | None, highest_mhz: int) -> str:
    """A table of clock levels, the one in force starred; where it is none of them, beside them."""
    if now_mhz is None or now_mhz == ABSENT_16:
        return f"S: 19Mhz *\n0: 132Mhz \n1: {highest_mhz}Mhz \n"
    steps = sorted({132, now_mhz, highest_mhz})
    return "".join(
        f"{place}: {step}Mhz {'*' if step == now_mhz else ''}\n" for place, step in enumerate(steps)
    )
