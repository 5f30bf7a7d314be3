"""Opens a back end, by name or the best that works on this machine."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final, TypeAlias

from chopperd.devices.base import BackendOptions, Choice, DeviceBackend, KnowsItsShortfall
from chopperd.errors import BackendUnavailableError, ConfigError

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
    if name == AUTO:
        return best(candidates(built_in), options)
    return Choice(open_from(built_in if name in built_in else loaders(), name, options))


def loaders() -> dict[str, Loader]:
    """Return functions that load the back ends' factories, by name; built-in ones take precedence.

    Lists the installed plug-ins, which takes long.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, rarely needed

    known: dict[str, Loader] = {
        entry_point.name: entry_point.load for entry_point in entry_points(group=ENTRY_POINT_GROUP)
    }
    known.update({name: _module_loader(module) for name, module in _BUILT_IN.items()})
    return known


def open_from(known: Mapping[str, Loader], name: str, options: BackendOptions) -> DeviceBackend:
    """Open a back end of the set `known` by name; raises as `open_backend` does."""
    if name not in known:
        names = ", ".join((AUTO, *sorted(known)))
        raise ConfigError([f"backend {name!r} is not known; known are: {names}"])
    try:
        return _open(known[name], options)
    except BackendUnavailableError as error:
        raise BackendUnavailableError(f"{name}: {error}") from error


def candidates(
    built_in: Mapping[str, Loader], installed: Callable[[], Mapping[str, Loader]] = loaders
) -> Iterator[tuple[str, Loader]]:
    """Yield the back ends that "auto" tries, in order.

    Plug-ins are listed last: listing them takes longer than all else before the first sample.
    """
    for name in _PREFERRED:
        if name in built_in:
            yield name, built_in[name]
    others = installed()
    for name in sorted(others.keys() - _ONLY_BY_NAME - {*_PREFERRED}):
        yield name, others[name]


def best(known: Iterable[tuple[str, Loader]], options: BackendOptions) -> Choice:
    """Open the first back end without a shortfall, else the first that opens; close the others."""
    passed: list[str] = []
    held: DeviceBackend | None = None
    for name, load in known:
        try:
            backend = _open(load, options)
        except BackendUnavailableError as error:
            passed.append(f"{name}: {error}")
            continue
        shortfall = backend.shortfall() if isinstance(backend, KnowsItsShortfall) else None
        if held is None and shortfall is not None:
            held = backend
            passed.append(f"{name}: {shortfall}")
        elif shortfall is None and (held is None or len(backend.devices()) >= len(held.devices())):
            if held is not None:
                held.close()
            return _chosen(backend, passed)
        else:
            backend.close()
    if held is not None:
        return _chosen(held, passed)
    tried = "; ".join(passed) or "no back end is installed"
    raise BackendUnavailableError(f"no usable GPU back end ({tried})")


def _chosen(backend: DeviceBackend, passed: Sequence[str]) -> Choice:
    reason = f"{backend.name} reads the GPUs" + (f" ({'; '.join(passed)})" if passed else "")
    logger.info("%s", reason)
    return Choice(backend, reason)


def _open(load: Loader, options: BackendOptions) -> DeviceBackend:
    """Load and open a back end; a broken plug-in is a back end that can't be used here."""
    try:
        return load()(options)
    except (BackendUnavailableError, ConfigError):
        raise
    except Exception as error:
        logger.debug("a back end does not load", exc_info=True)
        raise BackendUnavailableError(f"does not load: {error!r}") from error


def _module_loader(module: str) -> Loader:
    def load() -> Factory:
        factory: Factory = import_module(module).open_backend
        return factory

    return load
