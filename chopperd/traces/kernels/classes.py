"""What each device record does: kernels by their names, copies and fills by their kind."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int8s
from chopperd.model.kinds import CopyDirection, KernelClass
from chopperd.model.trace import DeviceRecords, RecordKind
from chopperd.traces.kernels.class_table import COMMUNICATION, LIBRARIES, WORDS, ClassRule
from chopperd.traces.kernels.kernel_names import bare_name, own_name
from chopperd.traces.kernels.names import used_names

#: A site's own expressions see no more of a name, so that a slow one stays bearable.
MATCHED_LENGTH: Final = 256

_LONG_NUMBER: Final = re.compile(r"\d\d+")
_UNCLASSED: Final = np.int8(-1)

_OPERATION: Final = re.compile(
    r"^fsdp::(?:all_gather_copy_(?:in|out)|split_with_sizes_copy|chunk_cat|copy_)", re.IGNORECASE
)

_COPY_DIRECTIONS: Final = (
    (CopyDirection.H2D, re.compile(r"HtoD|HostToDevice|HtoA|Host -> Device")),
    (CopyDirection.D2H, re.compile(r"DtoH|DeviceToHost|AtoH|Device -> Host")),
    (CopyDirection.D2D, re.compile(r"")),
)

_Compiled = list[tuple[KernelClass, re.Pattern[str]]]


def record_classes(
    records: DeviceRecords, names: tuple[str, ...], extra_rules: Sequence[ClassRule] = ()
) -> Int8s:
    """The `KernelClass` of each record: (n,) int8.

    Copies and fills by their kind; kernels by the site's own rules; else those with collective
    metadata are communication; the others by the table.

    Args:
        records: The device records.
        names: What their `name` column indexes.
        extra_rules: The site's own rules, found in the first `MATCHED_LENGTH` characters of a
            kernel's qualified name, in any case.
    """
    own_rules, table = _compiled(extra_rules, re.IGNORECASE), _Table()
    by_site = np.full(len(names), _UNCLASSED, np.int8)
    by_table = np.full(len(names), KernelClass.OTHER, np.int8)
    for index in used_names(records.name[records.kind == RecordKind.KERNEL], len(names)):
        bare = bare_name(names[index])
        ours = _first_fit(own_rules, bare[:MATCHED_LENGTH])
        by_site[index] = _UNCLASSED if ours is None else ours
        by_table[index] = table.kernel_class(bare)
    column = by_table[records.name]
    column[records.collective >= 0] = KernelClass.COMM
    site_column = by_site[records.name]
    column = np.where(site_column == _UNCLASSED, column, site_column)
    column[records.kind == RecordKind.MEMCPY] = KernelClass.MEMCPY
    column[records.kind == RecordKind.MEMSET] = KernelClass.MEMSET
    return column


def classed_by_site(
    records: DeviceRecords, names: tuple[str, ...], extra_rules: Sequence[ClassRule]
) -> Bools:
    """Which kernels the site's own rules class: (n,) bool; arguments as of `record_classes`."""
    rules = _compiled(extra_rules, re.IGNORECASE)
    fits = np.zeros(len(names), np.bool_)
    if rules:
        for index in used_names(records.name[records.kind == RecordKind.KERNEL], len(names)):
            fits[index] = _first_fit(rules, bare_name(names[index])[:MATCHED_LENGTH]) is not None
    found: Bools = fits[records.name] & (records.kind == RecordKind.KERNEL)
    return found


def kernel_class(kernel_name: str) -> KernelClass:
    """The class of a kernel by its name alone."""
    return _Table().kernel_class(bare_name(kernel_name))


def class_by_operation(operation: str) -> KernelClass | None:
    """The class of every kernel that an operator, or an annotation, launches; None for most.

    FSDP2's copies run ordinary kernels, which only say in what they were launched: any operator
    around the launch counts, not the innermost alone (`fsdp::all_gather_copy_in` launches through
    `aten::_foreach_copy_`). Communication launched there stays communication.

    Source: operators and annotations of FSDP2 as torch 2.13 records them.
    """
    return KernelClass.COMM_PACK if _OPERATION.search(operation) else None


def copy_directions(records: DeviceRecords, names: tuple[str, ...]) -> Int8s:
    """The `CopyDirection` of each record: (n,) int8; `NONE` for kernels.

    Source: Kineto's names, "Memcpy HtoD (Pinned -> Device)", and HIP's "CopyHostToDevice". Copies
    that name neither host are between or inside devices.
    """
    of_name = np.full(len(names), CopyDirection.NONE, np.int8)
    for index in used_names(records.name[records.kind == RecordKind.MEMCPY], len(names)):
        of_name[index] = next(
            direction for direction, words in _COPY_DIRECTIONS if words.search(names[index])
        )
    column = np.where(records.kind == RecordKind.MEMCPY, of_name[records.name], CopyDirection.NONE)
    column[records.kind == RecordKind.MEMSET] = CopyDirection.MEMSET
    return column.astype(np.int8)


class _Table:
    """The built-in table, compiled, with the answers it gave.

    Generated kernels differ in numbers of several digits, which no rule asks for.
    """

    def __init__(self) -> None:
        self._libraries = _compiled(LIBRARIES)
        self._communication = _compiled(COMMUNICATION)
        self._words = _compiled(WORDS)
        self._known: dict[str, KernelClass] = {}

    def kernel_class(self, bare: str) -> KernelClass:
        """The class of a kernel by its bare name."""
        asked = _LONG_NUMBER.sub("00", bare.lower())
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._told(asked)
        return known

    def _told(self, whole: str) -> KernelClass:
        own = own_name(whole)
        asked = [(self._libraries, whole), (self._communication, own), (self._words, own)]
        if own != whole:
            asked.append((self._words, whole))
        told = (_first_fit(rules, text) for rules, text in asked)
        return next((found for found in told if found is not None), KernelClass.OTHER)


def _compiled(rules: Iterable[ClassRule], flags: int = 0) -> _Compiled:
    return [(rule.kernel_class, re.compile(rule.pattern, flags)) for rule in rules]


def _first_fit(rules: _Compiled, text: str) -> KernelClass | None:
    return next((fit for fit, pattern in rules if pattern.search(text)), None)
