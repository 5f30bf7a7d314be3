"""Which collective each communication kernel carries out, of which process group, how large."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

import numpy as np

from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.kinds import KernelClass
from chopperd.model.trace import Collective, Trace
from chopperd.traces.kernels.names import bounded, names_matching, used_names
from chopperd.traces.timeline.nesting import Moments, Nesting, beginnings

#: RCCL's kernel for all collectives; NCCL's names say the collective.
_GENERIC: Final = re.compile(r"^(?:nccl|rccl)\w*_Generic\b")
#: Where a communication kernel's name says the collective: NCCL's, DeepEP's (mangled too), others'.
_TELLING: Final = re.compile(
    r"^(?:nccl|rccl)\w*?Kernel_(?!Generic)([A-Za-z]+)"
    r"|\bdeep_ep::\w+::(dispatch|combine)\b|deep_ep\w*?\d(dispatch|combine)I"
    r"|((?:all_?(?:reduce|gather|to_?all))|reduce_?scatter)",
    re.IGNORECASE,
)
#: torch's annotation around the launch of a collective.
_ANNOTATION: Final = re.compile(r"^(?:nccl|rccl):")
_AFFIX: Final = re.compile(
    r"^(?:nccl|rccl):|_base$|_coalesced$|_into_tensor$|_tensor$|_oop$", re.IGNORECASE
)
#: How torch describes a process group that the program calls nothing.
_NOT_CALLED: Final = "undefined"
#: What torch records as a collective though it moves nothing.
_IDLE: Final = frozenset({"wait", "init"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """The collectives of a trace's device records.

    Attributes:
        column: (records,) int32, index into `distinct`; -1 for what does not communicate, and
            if neither metadata nor names say which collective it is.
        distinct: Each with its name in one spelling (`collective_name`).
    """

    column: Int32s
    distinct: tuple[Collective, ...]


def collective_name(text: str) -> str:
    """One name for a collective, however torch spells it: "allgather" of "nccl:_all_gather_base".

    Source: kernel metadata ("Collective name": allreduce, _allgather_base, _reduce_scatter_base)
        and annotations (nccl:all_reduce) of real traces.
    """
    name, before = text.lower(), ""
    while name != before:
        name, before = _AFFIX.sub("", name), name
    return name.replace("_", "")


def collectives_of(trace: Trace, call: Int64s, kernel_class: Int8s) -> Collectives:
    """The collective of each communication kernel, by the first source that has it.

    Its own metadata; that of the `record_param_comms` operator around its launch; the name of
    torch's annotation around its launch; its own name. The latter two give no group and no size.
    Where one operator launched several kernels, how they share its size is not known.

    Args:
        trace: The trace.
        call: (records,) int64, the call that launched each record; -1 unlinked.
        kernel_class: (records,) int8, `KernelClass`.
    """
    comm = np.flatnonzero(kernel_class == KernelClass.COMM)
    if not len(comm):
        return Collectives(column=np.full(len(call), -1, np.int32), distinct=())
    given = trace.records.collective[comm]
    launched = beginnings(trace.calls, call[comm])
    operator = Nesting(trace.spans, _described(trace)).innermost(launched)
    unknown = np.flatnonzero((given < 0) & (operator >= 0))
    given[unknown] = trace.spans.collective[operator[unknown]]
    found = _Numbering(trace.collectives)
    numbers = found.described(given, crowded=_crowded(operator))
    numbers = found.named(numbers, *_names_around(trace, launched))
    numbers = found.named(numbers, *_own_names(trace, trace.records.name[comm]))
    column = np.full(len(call), -1, np.int32)
    column[comm] = numbers
    return Collectives(column=column, distinct=found.distinct)


def generic_collectives(trace: Trace, found: Collectives) -> Iterator[tuple[Int64s, int, str]]:
    """The records of kernels that serve all collectives, by kernel name and collective.

    Those of which the collective is not known (launched before the recording) are left out.

    Args:
        trace: The trace.
        found: Its collectives.

    Yields:
        Indices of records, the name of all of them, and the collective's name.
    """
    generic = names_matching(trace.names, _GENERIC).take(trace.records.name)
    rows = np.flatnonzero(generic & (found.column >= 0))
    texts = [each.name for each in found.distinct]
    distinct = tuple(dict.fromkeys(texts))
    place_of = {text: place for place, text in enumerate(distinct)}
    place = np.array([place_of[text] for text in texts], np.int64)
    key = place[found.column[rows]] * len(trace.names) + trace.records.name[rows]
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []
    for group in sorted(groups, key=itemgetter(0)):
        collective, name = divmod(int(key[group[0]]), len(trace.names))
        yield rows[group], name, distinct[collective]


class _Numbering:
    """Distinct collectives in the order they are met, and columns that index them."""

    def __init__(self, recorded: tuple[Collective, ...]) -> None:
        self._recorded = recorded
        self._number_of: dict[Collective, int] = {}

    @property
    def distinct(self) -> tuple[Collective, ...]:
        return tuple(self._number_of)

    def described(self, given: Int32s, *, crowded: Bools) -> Int32s:
        """Numbers of the collectives as recorded, without a size where `crowded`; -1 stays."""
        numbers = np.full(len(given), -1, np.int32)
        for several in (False, True):
            of_recorded = np.full(len(self._recorded) + 1, -1, np.int32)
            mine = (crowded == several) & (given >= 0)
            for index in used_names(given[mine], len(self._recorded)).tolist():
                of_recorded[index] = self._number(self._plain(index, sized=not several))
            numbers[mine] = of_recorded[given[mine]]
        return numbers

    def named(self, numbers: Int32s, column: Int32s, texts: Sequence[str]) -> Int32s:
        """The numbers, those that are still -1 by name alone where there is one.

        Args:
            numbers: (n,) int32, as of `described`.
            column: (n,) int32, index into `texts`; -1 none.
            texts: Names of collectives.
        """
        open_ = (numbers < 0) & (column >= 0)
        of_text = np.full(len(texts) + 1, -1, np.int32)
        for index in used_names(column[open_], len(texts)).tolist():
            of_text[index] = self._number(Collective(name=bounded(collective_name(texts[index]))))
        return np.where(open_, of_text[column], numbers)

    def _number(self, collective: Collective) -> int:
        return self._number_of.setdefault(collective, len(self._number_of))

    def _plain(self, index: int, *, sized: bool) -> Collective:
        given = self._recorded[index]
        called = None if given.group_description == _NOT_CALLED else given.group_description
        plain = replace(
            given,
            name=bounded(collective_name(given.name)),
            group=None if given.group is None else bounded(given.group),
            group_description=None if called is None else bounded(called),
        )
        return plain if sized else replace(plain, in_elements=None, out_elements=None)


def _described(trace: Trace) -> Int64s:
    """The spans that say which collective they launch."""
    idle = np.array([collective_name(each.name) in _IDLE for each in trace.collectives], np.bool_)
    spans = np.flatnonzero(trace.spans.collective >= 0)
    return spans[~idle[trace.spans.collective[spans]]] if len(spans) else spans


def _crowded(operator: Int64s) -> Bools:
    """(n,) bool: whether another kernel was launched by the same operator."""
    known = operator >= 0
    counts = np.bincount(operator[known], minlength=1)
    several: Bools = known & (counts[operator] > 1)
    return several


def _names_around(trace: Trace, launched: Moments) -> tuple[Int32s, Sequence[str]]:
    spans = trace.spans
    annotation = names_matching(trace.names, _ANNOTATION).take(spans.name)
    around = Nesting(spans, np.flatnonzero(annotation)).innermost(launched)
    column = np.full(len(around), -1, np.int32)
    column[around >= 0] = spans.name[around[around >= 0]]
    return column, trace.names


def _own_names(trace: Trace, name: Int32s) -> tuple[Int32s, Sequence[str]]:
    """The collectives that kernels' own names say."""
    texts: list[str] = []
    of_name = np.full(len(trace.names), -1, np.int32)
    for index in used_names(name, len(trace.names)).tolist():
        if says := _TELLING.search(trace.names[index]):
            of_name[index] = len(texts)
            texts.append(next(filter(None, says.groups())))
    return of_name.take(name), texts
