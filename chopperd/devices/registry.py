"""Opens a back end, by name or the best that works on this machine."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from chopperd.devices.base import BackendOptions, Choice, DeviceBackend, KnowsItsShortfall
from chopperd.errors import BackendUnavailableError, ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger(__name__)

Factory: TypeAlias = Callable[[BackendOptions], DeviceBackend]
Loader: TypeAlias = Callable[[], Factory]

AUTO: Final = "auto"
ENTRY_POINT_GROUP: Final = "chopperd.backends"
DEFAULT_OPTIONS: Final = BackendOptions()

#: Built in, so that they are also found in a source tree without installed metadata.
_BUILT_IN: Final[Mapping[str, str]] = {
    "nvml": "chopperd.devices.nvml.backend",
    "amdgpu": "chopperd.devices.amd.kernel.backend",
    "amdsmi": "chopperd.devices.amd.smi.backend",
    "simulated": "chopperd.devices.simulated",
    "replay": "chopperd.devices.replay",
}
#: Order of "auto": the first without a shortfall, else the first that opens. The kernel's files
#: come before AMD SMI: both give the same metrics, but the files need no library, no device node
#: and no lock, under which one call that hangs blocks all GPUs. AMD SMI may know a version of the
#: metrics that is not known here.
_PREFERRED: Final = ("nvml", "amdgpu", "amdsmi")
_ONLY_BY_NAME: Final = frozenset({"simulated", "replay"})


def open_backend(name: str, options: BackendOptions = DEFAULT_OPTIONS) -> DeviceBackend:
    """Open a back end; "auto" takes the best that works here, never a simulated one.

    Raises:
        ConfigError: No back end has this name.
        BackendUnavailableError: It can't be used here, or for "auto" none can; the text says why.
    """
    return choose(name, options).backend


def choose(name: str, options: BackendOptions = DEFAULT_OPTIONS) -> Choice:
    """Open a back end as `open_backend` does; return it with the reason for the choice."""
    built_in = {known: _module_loader(module) for known, module in _BUILT_IN.items()}
    if name in built_in:
        return Choice(open_from(built_in, name, options))
    if name == AUTO:
        return _best(_automatic(built_in), options)
    return Choice(open_from(loaders(), name, options))


def loaders() -> dict[str, Loader]:
    """Return functions that load the back ends' factories, by name; built-in ones take precedence.

    Lists the installed plug-ins, which takes long.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, rarely needed

    known: dict[str, Loader] = {
        entry_point.name: _entry_point_loader(entry_point)
        for entry_point in entry_points(group=ENTRY_POINT_GROUP)
    }
    known.update({name: _module_loader(module) for name, module in _BUILT_IN.items()})
    return known


def open_from(known: Mapping[str, Loader], name: str, options: BackendOptions) -> DeviceBackend:
    """Open a back end of the set `known`, by name or "auto"; raises as `open_backend` does."""
    if name == AUTO:
        return _best(_in_order(known), options).backend
    if name not in known:
        names = ", ".join((AUTO, *sorted(known)))
        raise ConfigError([f"backend {name!r} is not known; known are: {names}"])
    try:
        return _open(known[name], options)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(f"{name}: {error}") from error


def _automatic(built_in: Mapping[str, Loader]) -> Iterator[tuple[str, Loader]]:
    """Yield the back ends that "auto" tries, in order.

    Plug-ins are listed last: listing them takes longer than all else before the first sample.
    """
    tried = [name for name in _PREFERRED if name in built_in]
    for name in tried:
        yield name, built_in[name]
    installed = {name: load for name, load in loaders().items() if name not in tried}
    yield from _in_order(installed)


def _best(candidates: Iterable[tuple[str, Loader]], options: BackendOptions) -> Choice:
    """Open the first back end without a shortfall, else the first that opens; close the others."""
    passed: list[str] = []
    held: DeviceBackend | None = None
    for name, load in candidates:
        try:
            backend = _open(load, options)
        except BackendUnavailableError as error:
            passed.append(f"{name}: {error}")
            continue
        shortfall = backend.shortfall() if isinstance(backend, KnowsItsShortfall) else None
        if held is None and shortfall is not None:
            held = backend
            passed.append(f"{name}: {shortfall}")
        elif shortfall is None and (held is None or _reads_as_many(backend, held)):
            if held is not None:
                held.close()
            return _chosen(backend, passed)
        else:
            backend.close()
    if held is not None:
        return _chosen(held, passed)
    tried = "; ".join(passed) or "no back end is installed"
    raise BackendUnavailableError(f"no usable GPU back end ({tried})")


def _reads_as_many(backend: DeviceBackend, held: DeviceBackend) -> bool:
    """Return whether a back end lists at least as many GPUs as the one held."""
    return len(backend.devices()) >= len(held.devices())


def _chosen(backend: DeviceBackend, passed: Sequence[str]) -> Choice:
    reason = f"{backend.name} reads the GPUs" + (f" ({'; '.join(passed)})" if passed else "")
    logger.info("%s", reason)
    return Choice(backend, reason)


def _in_order(known: Mapping[str, Loader]) -> Iterator[tuple[str, Loader]]:
    candidates = known.keys() - _ONLY_BY_NAME
    first = [name for name in _PREFERRED if name in candidates]
    for name in (*first, *sorted(candidates.difference(first))):
        yield name, known[name]


def _open(load: Loader, options: BackendOptions) -> DeviceBackend:
    """Load and open a back end; a broken plug-in is a back end that can't be used here."""
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
