from collections.abc import Callable

import pytest

from chopperd.devices.base import BackendOptions, DeviceBackend
from chopperd.devices.registry import (
    Factory,
    Loader,
    best,
    candidates,
    loaders,
    open_backend,
    open_from,
)
from chopperd.devices.replay import ReplayBackend
from chopperd.errors import BackendUnavailableError, ConfigError
from chopperd.model.devices import GpuInfo
from tests.fakes.clock import ScriptedClock
from tests.fakes.samples import recording

NO_OPTIONS = BackendOptions()


def works(backend: DeviceBackend) -> Loader:
    return lambda: lambda _options: backend


def fails(make_error: Callable[[], Exception]) -> Loader:
    def load() -> Factory:
        def factory(_options: BackendOptions) -> DeviceBackend:
            raise make_error()

        return factory

    return load


def must_not_load() -> Factory:
    raise AssertionError("this back end must not be tried")


def backend() -> DeviceBackend:
    return ReplayBackend(recording(), ScriptedClock())


def auto(known: dict[str, Loader]) -> DeviceBackend:
    return best(candidates(known, lambda: known), NO_OPTIONS).backend


def test_auto_takes_nvml_before_any_other_back_end() -> None:
    nvml = backend()
    known = {"acme": must_not_load, "amdsmi": must_not_load, "nvml": works(nvml)}
    assert auto(known) is nvml


def test_auto_goes_on_to_the_next_back_end_when_one_cannot_be_used() -> None:
    acme = backend()
    known = {"acme": works(acme), "nvml": fails(lambda: BackendUnavailableError("no driver"))}
    assert auto(known) is acme


def test_auto_never_invents_gpus_and_says_what_it_tried_and_why_not() -> None:
    known = {
        "simulated": must_not_load,
        "replay": must_not_load,
        "acme": fails(lambda: BackendUnavailableError("no card")),
        "nvml": fails(lambda: BackendUnavailableError("libnvidia-ml.so.1 not found")),
    }
    with pytest.raises(BackendUnavailableError) as caught:
        auto(known)
    assert str(caught.value) == (
        "no usable GPU back end (nvml: libnvidia-ml.so.1 not found; acme: no card)"
    )


def test_auto_with_nothing_installed_says_so() -> None:
    with pytest.raises(BackendUnavailableError, match="no back end is installed"):
        auto({"replay": must_not_load})


def test_a_vendor_module_that_breaks_on_import_is_a_back_end_that_cannot_be_used() -> None:
    def load() -> Factory:
        raise KeyError("amdsmi")

    with pytest.raises(BackendUnavailableError, match=r"amdsmi: does not load: KeyError\('amdsmi'"):
        open_from({"amdsmi": load}, "amdsmi", NO_OPTIONS)


def test_a_named_back_end_that_fails_is_not_replaced_by_another() -> None:
    known = {"nvml": fails(lambda: BackendUnavailableError("no GPU")), "acme": must_not_load}
    with pytest.raises(BackendUnavailableError, match=r"^nvml: no GPU$"):
        open_from(known, "nvml", NO_OPTIONS)


def test_an_unknown_name_is_a_configuration_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        open_from({"nvml": must_not_load, "replay": must_not_load}, "nvlm", NO_OPTIONS)
    assert caught.value.problems == ["backend 'nvlm' is not known; known are: auto, nvml, replay"]


def test_a_back_end_s_own_configuration_error_is_passed_on() -> None:
    known = {"nvml": fails(lambda: ConfigError(["devices.only is empty"]))}
    with pytest.raises(ConfigError, match=r"devices\.only is empty"):
        auto(known)


def test_the_built_in_back_ends_are_known_without_installed_metadata() -> None:
    assert {"nvml", "simulated", "replay"} <= set(loaders())


def test_a_recording_is_opened_by_name() -> None:
    opened = open_backend("replay", BackendOptions(replay=recording()))
    assert opened.name == "replay"


def test_replay_without_a_recording_cannot_be_opened() -> None:
    with pytest.raises(BackendUnavailableError, match=r"^replay: no recording was given$"):
        open_backend("replay")


class Short(ReplayBackend):
    """A back end that falls short of something."""

    name = "short"
    is_closed = False

    def shortfall(self) -> str | None:
        return "GPU 0: no block"

    def close(self) -> None:
        self.is_closed = True
        super().close()


def short() -> Short:
    return Short(recording(), ScriptedClock())


def test_auto_prefers_the_back_end_that_falls_short_of_nothing() -> None:
    files, library = short(), backend()
    assert auto({"amdgpu": works(files), "amdsmi": works(library)}) is (library)
    assert files.is_closed


def test_auto_keeps_what_falls_short_where_nothing_else_opens() -> None:
    files = short()
    known = {"amdgpu": works(files), "amdsmi": fails(lambda: BackendUnavailableError("no library"))}
    assert auto(known) is files
    assert not files.is_closed


def test_auto_takes_the_first_of_those_that_all_fall_short() -> None:
    files, library = short(), short()
    assert auto({"amdgpu": works(files), "amdsmi": works(library)}) is (files)
    assert (files.is_closed, library.is_closed) == (False, True)


def test_auto_takes_no_back_end_for_another_that_lists_fewer_gpus() -> None:
    class Fewer(ReplayBackend):
        def devices(self) -> tuple[GpuInfo, ...]:
            return ()

    files, library = short(), Fewer(recording(), ScriptedClock())
    known = {"amdgpu": works(files), "amdsmi": works(library)}
    assert auto(known) is files


def test_auto_says_what_it_took_and_why_no_other(caplog: pytest.LogCaptureFixture) -> None:
    known = {
        "nvml": fails(lambda: BackendUnavailableError("no driver")),
        "amdgpu": works(backend()),
        "amdsmi": must_not_load,
    }
    with caplog.at_level("INFO"):
        auto(known)
    assert "replay reads the GPUs (nvml: no driver)" in caplog.text
