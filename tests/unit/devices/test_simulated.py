import pytest

from chopperd.devices.base import BackendOptions
from chopperd.devices.simulated import open_backend
from chopperd.errors import ConfigError
from chopperd.model.devices import ReadScope, Vendor
from chopperd.simulation.node import SimulatedNode
from chopperd.simulation.presets import SimulationSpec
from tests.fakes.clock import ScriptedClock

START_NS = 1_790_857_026_000_000_000


def test_a_read_is_what_the_simulation_says_for_the_present() -> None:
    spec = SimulationSpec(preset="fsdp2-h100", start_unix_ns=START_NS)
    clock = ScriptedClock(unix_ns=START_NS)
    backend, node = open_backend(BackendOptions(simulation=spec), clock), SimulatedNode(spec)
    clock.advance(1_234_000_000)
    for gpu in backend.devices():
        expected = node.reading(gpu.index, clock.unix_ns())
        assert backend.read(gpu, ReadScope.FULL) == expected
        fast = backend.read(gpu, ReadScope.FAST)
        assert fast.sm_clock_mhz == expected.sm_clock_mhz
        assert fast.power_w is None
    backend.close()


def test_the_back_end_says_that_it_is_simulated_and_who_its_gpus_are() -> None:
    options = BackendOptions(simulation=SimulationSpec(preset="fsdp2-mi300x", start_unix_ns=1))
    backend = open_backend(options, ScriptedClock(unix_ns=START_NS))
    assert (backend.name, backend.simulated, backend.driver) == ("simulated", True, None)
    gpus = backend.devices()
    assert [gpu.gpu for gpu in gpus] == [str(index) for index in range(8)]
    assert {gpu.vendor for gpu in gpus} == {Vendor.AMD}
    assert {gpu.sm_clock_max_mhz for gpu in gpus} == {2100.0}
    assert len({gpu.uuid for gpu in gpus}) == len({gpu.pci_bus_id for gpu in gpus}) == 8


def test_a_simulation_without_a_start_begins_when_opened() -> None:
    clock = ScriptedClock(unix_ns=START_NS)
    backend = open_backend(BackendOptions(), clock)
    before = backend.read(backend.devices()[0], ReadScope.FULL)
    clock.advance(500_000_000)
    after = backend.read(backend.devices()[0], ReadScope.FULL)
    assert before.energy_j is not None
    assert after.energy_j is not None
    assert 150 < after.energy_j - before.energy_j < 450


def test_an_unknown_preset_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="unknown"):
        open_backend(BackendOptions(simulation=SimulationSpec(preset="nine-gpus")), ScriptedClock())
