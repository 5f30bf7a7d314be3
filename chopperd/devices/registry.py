"""Which back ends there are, and opening one by name or by what works here."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from chopperd.devices.base import BackendOptions, DeviceBackend
from chopperd.errors import BackendUnavailableError, ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger(__name__)

Factory: TypeAlias = Callable[[BackendOptions], DeviceBackend]
Loader: TypeAlias = Callable[[], Factory]

AUTO: Final = "auto"
ENTRY_POINT_GROUP: Final = "chopperd.backends"
DEFAULT_OPTIONS: Final = BackendOptions()

#: The back ends of this package: a source tree without installed metadata has them too.
_BUILT_IN: Final[Mapping[str, str]] = {
    "nvml": "chopperd.devices.nvml.backend",
    "amdsmi": "chopperd.devices.amdsmi.backend",
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
    built_in = {known: _module_loader(module) for known, module in _BUILT_IN.items()}
    if name in built_in:
        return open_from(built_in, name, options)
    if name == AUTO:
        return _first_usable(_automatic(built_in), options)
    return open_from(loaders(), name, options)


def loaders() -> dict[str, Loader]:
    """How to load each known back end's factory, by name: built in, then installed."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes long, is seldom needed

    known: dict[str, Loader] = {
        entry_point.name: _entry_point_loader(entry_point)
        for entry_point in entry_points(group=ENTRY_POINT_GROUP)
    }
    known.update({name: _module_loader(module) for name, module in _BUILT_IN.items()})
    return known


def open_from(known: Mapping[str, Loader], name: str, options: BackendOptions) -> DeviceBackend:
    """`open_backend` over a given set of back ends."""
    if name == AUTO:
        return _first_usable(_in_order(known), options)
    if name not in known:
        names = ", ".join((AUTO, *sorted(known)))
        raise ConfigError([f"backend {name!r} is not known; known are: {names}"])
    try:
        return _open(known[name], options)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(f"{name}: {error}") from error


def _automatic(built_in: Mapping[str, Loader]) -> Iterator[tuple[str, Loader]]:
    """The back ends to try: what is installed is looked for only where no built-in one will do.

    That takes longer than all else before the first sample.
    """
    tried = [name for name in _PREFERRED if name in built_in]
    for name in tried:
        yield name, built_in[name]
    installed = {name: load for name, load in loaders().items() if name not in tried}
    yield from _in_order(installed)


def _first_usable(
    candidates: Iterable[tuple[str, Loader]], options: BackendOptions
) -> DeviceBackend:
    reasons = []
    for name, load in candidates:
        try:
            return _open(load, options)
        except BackendUnavailableError as error:
            reasons.append(f"{name}: {error}")
    tried = "; ".join(reasons) or "no back end is installed"
    raise BackendUnavailableError(f"no usable GPU back end ({tried})")


def _in_order(known: Mapping[str, Loader]) -> Iterator[tuple[str, Loader]]:
    candidates = known.keys() - _ONLY_BY_NAME
    first = [name for name in _PREFERRED if name in candidates]
    for name in (*first, *sorted(candidates.difference(first))):
        yield name, known[name]


def _open(load: Loader, options: BackendOptions) -> DeviceBackend:
    """Load and open a back end; a broken plug-in counts as one that can't be used here."""
    try:
        return load()(options)
    except (BackendUnavailableError, ConfigError):
        raise
    except Exception as error:
        logger.debug("a back end does not load", exc_info=True)
        raise BackendUnavailableError(f"does not load: {error!r}") from error


def _entry_point_loader(entry_point: "EntryPoint") -> Loader:
    def load() -> Factory:
        factory: Factory = entry_point.load()
        return factory

    return load


def _module_loader(module: str) -> Loader:
    def load() -> Factory:
        factory: Factory = import_module(module).open_backend
        return factory

    return load
