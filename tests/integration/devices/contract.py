"""What every back end owes its callers, whatever it reads: the sampler relies on each of these.

A test class per back end inherits `BackendContract` and gives it an open back end by a fixture.
"""

import threading
from collections.abc import Mapping
from dataclasses import fields

import pytest

from chopperd.devices.base import DeviceBackend
from chopperd.errors import DeviceError
from chopperd.model.causes import CAUSES, Cause
from chopperd.model.devices import DeviceReading, GpuInfo, ReadScope, Vendor

FAST_FIELDS = frozenset({"sm_clock_mhz", "causes", "limited_ns"})
LOOKS = 20
JOIN_TIMEOUT_S = 20

# Between what an idle GPU and the fastest GPU of any maker report, with room on both sides.
CREDIBLE = {
    "sm_clock_mhz": (50, 5_000),
    "mem_clock_mhz": (50, 20_000),
    "power_w": (1, 5_000),
    "energy_j": (0, 1e13),
    "temperature_c": (0, 125),
    "memory_used_bytes": (0, 1 << 40),
    "activity_ratio": (0, 1),
}


def reported(reading: DeviceReading) -> set[str]:
    """The fields that say something: not None, not an empty mapping."""
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    return {name for name, value in values.items() if value is not None and value != {}}


def fell(before: Mapping[Cause, int], after: Mapping[Cause, int]) -> set[Cause]:
    return {cause for cause in before if cause in after and after[cause] < before[cause]}


class BackendContract:
    """The suite; the back end lists at least two GPUs, all of which answer."""

    def test_every_gpu_has_an_identity_of_its_own(self, backend: DeviceBackend) -> None:
        devices = backend.devices()
        assert len(devices) >= 2
        for identity in ("gpu", "index", "uuid"):
            assert len({getattr(device, identity) for device in devices}) == len(devices)
        assert all(device.uuid and device.name for device in devices)

    def test_identities_stay_the_same(self, backend: DeviceBackend) -> None:
        before = backend.devices()
        for device in before:
            backend.read(device, ReadScope.FULL)
        assert backend.devices() == before

    def test_a_back_end_says_what_it_is(self, backend: DeviceBackend) -> None:
        assert backend.name
        assert isinstance(backend.simulated, bool)
        assert backend.driver is None or backend.driver

    def test_a_full_look_holds_credible_values_in_the_contract_s_units(
        self, backend: DeviceBackend
    ) -> None:
        for device in backend.devices():
            reading = backend.read(device, ReadScope.FULL)
            assert "sm_clock_mhz" in reported(reading)
            for name, (low, high) in CREDIBLE.items():
                value = getattr(reading, name)
                assert value is None or low <= value <= high, f"{name} = {value}"

    def test_clocks_stay_below_the_highest_clock(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            clock_mhz = backend.read(device, ReadScope.FAST).sm_clock_mhz
            if device.sm_clock_max_mhz is not None and clock_mhz is not None:
                assert clock_mhz <= device.sm_clock_max_mhz + 15

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
            for cause in {*(reading.causes or ()), *reading.limited_ns}:
                assert cause in CAUSES
                assert cause is not Cause.UNEXPLAINED

    def test_cumulative_counters_never_fall(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            before = backend.read(device, ReadScope.FULL)
            for _ in range(LOOKS):
                after = backend.read(device, ReadScope.FULL)
                assert not fell(before.limited_ns, after.limited_ns)
                if before.energy_j is not None and after.energy_j is not None:
                    assert after.energy_j >= before.energy_j
                before = after

    def test_what_is_reported_once_is_reported_again(self, backend: DeviceBackend) -> None:
        for device in backend.devices():
            looks = [reported(backend.read(device, ReadScope.FULL)) for _ in range(LOOKS)]
            assert all(look == looks[0] for look in looks)

    def test_gpus_are_read_at_once_by_one_thread_each(self, backend: DeviceBackend) -> None:
        seen: dict[str, list[DeviceReading]] = {device.gpu: [] for device in backend.devices()}

        def watch(device: GpuInfo) -> None:
            for turn in range(LOOKS):
                scope = ReadScope.FAST if turn % 2 else ReadScope.FULL
                seen[device.gpu].append(backend.read(device, scope))

        threads = [
            threading.Thread(target=watch, args=(device,), name=f"chopperd-test-{device.gpu}")
            for device in backend.devices()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)
        assert all(len(readings) == LOOKS for readings in seen.values())

    def test_a_gpu_that_is_not_there_is_a_device_error(self, backend: DeviceBackend) -> None:
        stranger = GpuInfo(
            gpu="99", index=99, uuid="GPU-of-nobody", name="none", vendor=Vendor.OTHER
        )
        for scope in ReadScope:
            with pytest.raises(DeviceError):
                backend.read(stranger, scope)

    def test_closing_twice_is_closing_once(self, backend: DeviceBackend) -> None:
        backend.close()
        backend.close()
