"""Which back ends there are, and opening one by name or by what works here."""

import logging
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeAlias

from chopperd.devices.base import BackendOptions, DeviceBackend
from chopperd.errors import BackendUnavailableError, ConfigError

logger = logging.getLogger(__name__)

Factory: TypeAlias = Callable[[BackendOptions], DeviceBackend]
Loader: TypeAlias = Callable[[], Factory]

AUTO: Final = "auto"
ENTRY_POINT_GROUP: Final = "chopperd.backends"
DEFAULT_OPTIONS: Final = BackendOptions()

#: The back ends of this package: a source tree without installed metadata has them too.
_BUILT_IN: Final[Mapping[str, str]] = {
    "nvml": "chopperd.devices.nvml",
    "simulated": "chopperd.devices.simulated",
    "replay": "chopperd.devices.replay",
}
_PREFERRED: Final = ("nvml", "amdsmi")
_ONLY_BY_NAME: Final = frozenset({"simulated", "replay"})


def open_backend(name: str, options: BackendOptions = DEFAULT_OPTIONS) -> DeviceBackend:
    """An open back end; "auto" takes the first that works here, never an invented GPU.

    Raises:
        ConfigError: No back end has this name.
        BackendUnavailableError: It can't be used here; for "auto", none can, and why each.
    """
    return open_from(loaders(), name, options)


def loaders() -> dict[str, Loader]:
    """How to load each known back end's factory, by name: built in, then installed."""
    known: dict[str, Loader] = {
        entry_point.name: _entry_point_loader(entry_point)
        for entry_point in entry_points(group=ENTRY_POINT_GROUP)
    }
    known.update({name: _module_loader(module) for name, module in _BUILT_IN.items()})
    return known


def open_from(known: Mapping[str, Loader], name: str, options: BackendOptions) -> DeviceBackend:
    """`open_backend` over a given set of back ends."""
    if name == AUTO:
        return _first_usable(known, options)
    if name not in known:
        names = ", ".join((AUTO, *sorted(known)))
        raise ConfigError([f"backend {name!r} is not known; known are: {names}"])
    try:
        return _open(known[name], options)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(f"{name}: {error}") from error


def _first_usable(known: Mapping[str, Loader], options: BackendOptions) -> DeviceBackend:
    reasons = []
    for name in _automatic_order(known):
        try:
            return _open(known[name], options)
        except BackendUnavailableError as error:
            reasons.append(f"{name}: {error}")
    tried = "; ".join(reasons) or "no back end is installed"
    raise BackendUnavailableError(f"no usable GPU back end ({tried})")


def _automatic_order(names: Iterable[str]) -> list[str]:
    candidates = set(names) - _ONLY_BY_NAME
    first = [name for name in _PREFERRED if name in candidates]
    return first + sorted(candidates - set(first))


def _open(load: Loader, options: BackendOptions) -> DeviceBackend:
    """Load and open a back end; a broken plug-in counts as one that can't be used here."""
    try:
        return load()(options)
    except (BackendUnavailableError, ConfigError):
        raise
    except Exception as error:
        logger.debug("a back end does not load", exc_info=True)
        raise BackendUnavailableError(f"does not load: {error!r}") from error


def _entry_point_loader(entry_point: EntryPoint) -> Loader:
    def load() -> Factory:
        factory: Factory = entry_point.load()
        return factory

    return load


def _module_loader(module: str) -> Loader:
    def load() -> Factory:
        factory: Factory = import_module(module).open_backend
        return factory

    return load
