"""The contract of a back end as a test suite to inherit: the sampler relies on all of it.

A test class inherits `BackendContract` and provides an open back end by a fixture `backend`;
docs/backends.md shows one. It needs pytest, which chopperd itself does not.
"""

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from chopperd.devices.base import (
    DeviceBackend,
    ExplainsTrouble,
    ListsProcesses,
    NoticesChanges,
    PlansReads,
    ProbesFields,
)
from chopperd.devices.read_plan import ReadPlan
from chopperd.errors import DeviceError, DeviceLostError
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor
from chopperd.model.kinds import CAUSES, Cause
from chopperd.testing.plans import carried_out

#: Fields of a fast read: the clock and the limits, and what comes with them in one call.
FAST_FIELDS: Final = frozenset(
    {
        "sm_clock_mhz",
        "die_clocks_mhz",
        "causes",
        "limited_ns",
        "mem_clock_mhz",
        "power_w",
        "energy_j",
        "temperature_c",
        "activity_ratio",
    }
)
#: From idle GPUs to the fastest of any maker, with a margin. Where 0 is outside, a 0 would be an
#: unknown value.
CREDIBLE: Final[Mapping[str, tuple[float, float]]] = {
    "sm_clock_mhz": (50, 5_000),
    "mem_clock_mhz": (50, 20_000),
    "power_w": (1, 5_000),
    "power_average_w": (1, 5_000),
    "power_limit_w": (10, 10_000),
    "energy_j": (0, 1e13),
    "temperature_c": (0, 125),
    "temperature_memory_c": (0, 125),
    "memory_used_bytes": (0, 1 << 40),
    "memory_reserved_bytes": (0, 1 << 40),
    "activity_ratio": (0, 1),
}
_FIXED: Final[Mapping[str, tuple[float, float]]] = {
    "sm_clock_max_mhz": (100, 5_000),
    "sm_clock_limit_mhz": (50, 5_000),
    "mem_clock_max_mhz": (100, 20_000),
    "power_limit_w": (10, 10_000),
    "power_limit_default_w": (10, 10_000),
    "memory_size_bytes": (1 << 20, 1 << 42),
    "temperature_slowdown_c": (40, 150),
    "temperature_shutdown_c": (40, 150),
    "temperature_memory_max_c": (40, 150),
}
#: By how much a reading may exceed the highest clock: drivers round both.
_CLOCK_ROUNDING_MHZ: Final = 15
_READS: Final = 20
_MANY_READS: Final = 100
_JOIN_TIMEOUT_S: Final = 20
_STRANGER: Final = GpuInfo(
    gpu="99", index=99, uuid="GPU-of-nobody", name="none", vendor=Vendor.OTHER
)


class BackendContract:
    """The suite; the back end lists at least one GPU, and all GPUs answer.

    Optional protocols that a back end lacks, and `lose`, are skipped.
    """

    def lose(self, backend: DeviceBackend) -> GpuInfo | None:
        """Remove a GPU for good and return it; None if a test can't do that."""
        del backend
        return None

    def test_every_gpu_has_an_identity_of_its_own(self, backend: DeviceBackend) -> None:
        devices = backend.devices()
        assert devices
        for identity in ("gpu", "uuid"):
            assert len({getattr(device, identity) for device in devices}) == len(devices)
        whole = [device for device in devices if device.parent is None]
        assert len({device.index for device in whole}) == len(whole)
        assert all(device.uuid and device.name for device in devices)

    def test_a_partition_names_a_card(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            if device.parent is not None:
                assert device.gpu.startswith(f"{device.parent}.")

    def test_identities_stay_the_same(self, backend: DeviceBackend) -> None:
        before = backend.devices()
        for device in before:
            backend.read(device, ReadScope.FULL)
        assert backend.devices() == before

    def test_a_back_end_says_what_it_is(self, backend: DeviceBackend) -> None:
        assert backend.name
        assert isinstance(backend.simulated, bool)
        assert backend.driver is None or backend.driver

    def test_what_stands_still_is_credible_or_none(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            assert _incredible(device, _FIXED) == {}

    def test_a_full_look_holds_credible_values_in_the_contract_s_units(
        self, backend: DeviceBackend
    ) -> None:
        for device in backend.devices():
            assert _incredible(backend.read(device, ReadScope.FULL), CREDIBLE) == {}

    def test_every_whole_gpu_has_a_clock(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            if device.parent is None:
                assert backend.read(device, ReadScope.FAST).sm_clock_mhz is not None

    def test_clocks_stay_below_the_highest_clock(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            clock_mhz = backend.read(device, ReadScope.FAST).sm_clock_mhz
            if device.sm_clock_max_mhz is not None and clock_mhz is not None:
                assert clock_mhz <= device.sm_clock_max_mhz + _CLOCK_ROUNDING_MHZ

    def test_a_fast_look_fills_no_other_fields_and_none_that_a_full_one_lacks(
        self, backend: DeviceBackend
    ) -> None:
        for device in backend.devices():
            fast = reported(backend.read(device, ReadScope.FAST))
            assert fast <= FAST_FIELDS
            assert fast <= reported(backend.read(device, ReadScope.FULL))

    def test_limits_are_causes_that_a_driver_can_report(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            reading = backend.read(device, ReadScope.FAST)
            # Counters of a limit and of its reasons leave what is unexplained; bits never do.
            assert Cause.UNEXPLAINED not in (reading.causes or ())
            assert {*(reading.causes or ()), *reading.limited_ns} <= {*CAUSES}
            limited_ns = reading.limited_ns.items()
            assert all(ns >= 0 for cause, ns in limited_ns if cause is not Cause.UNEXPLAINED)

    def test_cumulative_counters_never_fall(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            before = backend.read(device, ReadScope.FULL)
            for _ in range(_READS):
                after = backend.read(device, ReadScope.FULL)
                assert _fallen(before, after) == set()
                before = after

    def test_what_is_reported_once_is_reported_again(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            reads = [reported(backend.read(device, ReadScope.FULL)) for _ in range(_READS)]
            assert all(read == reads[0] for read in reads)

    def test_gpus_are_read_at_once_by_one_thread_each(self, backend: DeviceBackend) -> None:
        seen: dict[str, list[DeviceReading]] = {device.gpu: [] for device in backend.devices()}

        def watch(device: GpuInfo) -> None:
            for turn in range(_READS):
                scope = ReadScope.FAST if turn % 2 else ReadScope.FULL
                seen[device.gpu].append(backend.read(device, scope))

        threads = [
            threading.Thread(target=watch, args=(device,), name=f"chopperd-test-{device.gpu}")
            for device in backend.devices()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_JOIN_TIMEOUT_S)
        assert all(len(readings) == _READS for readings in seen.values())

    def test_reads_leave_no_open_files_and_no_threads(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            for scope in ReadScope:
                backend.read(device, scope)  # what is opened once may stay open
            before = _held()
            for _ in range(_MANY_READS):
                backend.read(device, ReadScope.FULL)
            # Fewer is fine: a thread of an earlier test may have ended.
            assert all(now <= was for now, was in zip(_held(), before, strict=True))

    def test_a_gpu_that_is_not_there_is_a_device_error(self, backend: DeviceBackend) -> None:
        for scope in ReadScope:
            with pytest.raises(DeviceError):
                backend.read(_STRANGER, scope)

    def test_a_lost_gpu_is_said_to_be_and_leaves_the_others(self, backend: DeviceBackend) -> None:
        lost = self.lose(backend)
        if lost is None:
            pytest.skip("no GPU of this back end can be lost in a test")
        for scope in ReadScope:
            with pytest.raises(DeviceLostError):
                backend.read(lost, scope)
        for device in backend.devices():
            if lost.gpu not in {device.gpu, device.parent}:
                assert reported(backend.read(device, ReadScope.FULL))

    def test_closing_twice_is_closing_once(self, backend: DeviceBackend) -> None:
        backend.close()
        backend.close()

    def test_a_read_after_the_end_is_a_device_error(self, backend: DeviceBackend) -> None:
        device = backend.devices()[0]
        backend.read(device, ReadScope.FULL)
        backend.close()
        for scope in ReadScope:
            with pytest.raises(DeviceError):
                backend.read(device, scope)

    def test_a_planned_read_gives_what_a_read_gives(self, backend: DeviceBackend) -> None:
        if not isinstance(backend, PlansReads):
            pytest.skip("this back end plans no reads")
        for device in backend.devices():
            for scope in ReadScope:
                backend.read(device, scope)
                plan = backend.read_plan(device, scope)
                if plan is not None:
                    assert backend.read_plan(device, scope) is plan
                    _assert_planned_as_read(backend, device, scope, plan)

    def test_processes_are_listed_once_each(self, backend: DeviceBackend) -> None:
        if not isinstance(backend, ListsProcesses):
            pytest.skip("this back end lists no processes")
        for device in backend.devices():
            listed = backend.processes(device)
            if listed is None:
                continue
            assert len({(each.pid, each.partition) for each in listed}) == len(listed)
            for process in listed:
                assert process.pid > 0
                assert process.memory_used_bytes is None or process.memory_used_bytes >= 0

    def test_trouble_is_one_line_or_none_and_never_an_error(self, backend: DeviceBackend) -> None:
        if not isinstance(backend, ExplainsTrouble):
            pytest.skip("this back end explains no problem")
        for device in (*backend.devices(), _STRANGER):
            assert _is_line_or_none(backend.trouble(device))
        backend.close()
        assert _is_line_or_none(backend.trouble(_STRANGER))

    def test_nothing_has_changed_at_first(self, backend: DeviceBackend) -> None:
        if not isinstance(backend, NoticesChanges):
            pytest.skip("this back end notices no changes")
        assert backend.changed() is None

    def test_probes_name_fields_and_say_why_one_does_not_answer(
        self, backend: DeviceBackend
    ) -> None:
        if not isinstance(backend, ProbesFields):
            pytest.skip("this back end probes no fields")
        names = {name for kind in (DeviceReading, GpuInfo) for name in kind.__struct_fields__}
        for device in backend.devices():
            probes = backend.probe(device, 3)
            assert probes
            for probe in probes:
                assert probe.operation
                assert probe.feeds is None or probe.feeds.partition(".")[0] in names
                assert probe.answers is (probe.error is None)
                assert not (probe.used and probe.error), probe
            for name in ("power_w", "sm_clock_mhz"):
                period_ns = backend.buffered_period_ns(device, name)
                assert period_ns is None or period_ns > 0


def reported(reading: DeviceReading) -> set[str]:
    """Names of the fields that are neither None nor an empty collection."""
    values = {name: getattr(reading, name) for name in reading.__struct_fields__}
    return {name for name, value in values.items() if value is not None and value not in ({}, ())}


def _assert_planned_as_read(
    backend: DeviceBackend, device: GpuInfo, scope: ReadScope, plan: ReadPlan
) -> None:
    """Compare with the reads before and after; values that change may differ, but not each time."""
    differing: dict[str, object] = {}
    for _ in range(_READS):
        before, planned = backend.read(device, scope), carried_out(plan)
        after = backend.read(device, scope)
        assert reported(planned) == reported(before)
        assert _fallen(before, planned) | _fallen(planned, after) == set()
        differing = _differing(before, planned, after)
        if not differing:
            return
    pytest.fail(f"GPU {device.gpu}, {scope}: planned reads give {differing}")


def _incredible(
    values: DeviceReading | GpuInfo, bounds: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """The values outside of their bounds, NaN included; None is allowed."""
    numbers = {name: getattr(values, name) for name in bounds}
    return {
        name: value
        for name, value in numbers.items()
        if value is not None and not bounds[name][0] <= value <= bounds[name][1]
    }


def _fallen(before: DeviceReading, after: DeviceReading) -> set[str]:
    """Names of the counters that have fallen."""
    fallen = {
        cause.label
        for cause, limited_ns in before.limited_ns.items()
        if after.limited_ns.get(cause, limited_ns) < limited_ns
        and cause is not Cause.UNEXPLAINED  # a difference of counters
    }
    energy_j = before.energy_j, after.energy_j
    # A plan and a read may round the last digit differently.
    if energy_j[0] is not None and energy_j[1] is not None:
        fallen |= {"energy_j"} if energy_j[1] < energy_j[0] * (1 - 1e-12) else set()
    return fallen


def _differing(
    before: DeviceReading, planned: DeviceReading, after: DeviceReading
) -> dict[str, object]:
    """Fields that are equal before and after a planned read, and differ in it."""
    return {
        name: value
        for name in planned.__struct_fields__
        if getattr(before, name) == getattr(after, name)
        and not _is_same(value := getattr(planned, name), getattr(before, name))
    }


def _is_same(first: object, second: object) -> bool:
    if isinstance(first, int | float) and isinstance(second, int | float):
        return math.isclose(first, second, rel_tol=1e-9)
    return first == second


def _is_line_or_none(text: str | None) -> bool:
    return text is None or (bool(text) and len(text.splitlines()) == 1)


def _held() -> tuple[int, int]:
    """Open files and threads of this process."""
    process = Path("/proc/self")
    return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))
