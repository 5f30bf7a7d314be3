"""Find the collective that each communication kernel carries out, its process group and size."""

import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

import numpy as np
from msgspec.structs import replace

from chopperd.model.arrays import Bools, Int8s, Int32s, Int64s
from chopperd.model.kinds import KernelClass
from chopperd.model.trace import Collective, Trace
from chopperd.traces.kernels.names import bounded, names_matching, used_names
from chopperd.traces.timeline.nesting import Moments, Nesting, beginnings

#: RCCL's kernel for all collectives; NCCL's names have the collective.
_GENERIC: Final = re.compile(r"^(?:nccl|rccl)\w*_Generic\b")
#: Where a communication kernel's name has the collective: NCCL's, DeepEP's (mangled too), others'.
_IN_NAME: Final = re.compile(
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
#: torch's description of a process group to which the program gives none.
_NO_DESCRIPTION: Final = "undefined"
#: What torch records as a collective though it moves nothing.
_IDLE: Final = frozenset({"wait", "init"})


def collective_name(text: str) -> str:
    """Return one name for all spellings of a collective: "allgather" for "nccl:_all_gather_base".

    Source: kernel metadata (_allgather_base, _reduce_scatter_base) and annotations
    (nccl:all_reduce).
    """
    name, before = text.lower(), ""
    while name != before:
        name, before = _AFFIX.sub("", name), name
    return name.replace("_", "")


def collectives_of(
    trace: Trace, call: Int64s, kernel_class: Int8s
) -> tuple[tuple[Collective, ...], Int32s]:
    """Return a trace's distinct collectives, and each record's index: (records,) int32, -1 unknown.

    Sources, best first: the record's metadata; that of the `record_param_comms` operator around its
    launch; the name of torch's annotation around it; the record's name. The latter two give no
    group and no size. Where one operator launched several kernels, how they share its size is not
    known. `call`: (records,), the call that launched each record; -1 unlinked.
    """
    comm = np.flatnonzero(kernel_class == KernelClass.COMM)
    if not len(comm):
        return (), np.full(len(call), -1, np.int32)
    given = trace.records.collective[comm]
    launched = beginnings(trace.calls, call[comm])
    operator = Nesting(trace.spans, _described(trace)).innermost(launched)
    unknown = np.flatnonzero((given < 0) & (operator >= 0))
    given[unknown] = trace.spans.collective[operator[unknown]]
    found = _Numbering(trace.collectives)
    # Operators that launched another kernel too.
    crowded = np.bincount(operator[operator >= 0], minlength=1)[operator] > 1
    numbers = found.described(given, crowded=(operator >= 0) & crowded)
    numbers = found.named(numbers, *_names_around(trace, launched))
    numbers = found.named(numbers, *_own_names(trace, trace.records.name[comm]))
    column = np.full(len(call), -1, np.int32)
    column[comm] = numbers
    return tuple(found), column


def generic_collectives(
    trace: Trace, collectives: Sequence[Collective], column: Int32s
) -> Iterator[tuple[Int64s, int, str]]:
    """Yield the records of kernels that serve all collectives, by kernel name and collective.

    Each is the records' indices, the index of their name in `Trace.names`, and the collective's
    name; without those of no known collective. Takes what `collectives_of` returns.
    """
    generic = names_matching(trace.names, _GENERIC).take(trace.records.name)
    rows = np.flatnonzero(generic & (column >= 0))
    texts = [each.name for each in collectives]
    distinct = tuple(dict.fromkeys(texts))
    slot_of = {text: slot for slot, text in enumerate(distinct)}
    slot = np.array([slot_of[text] for text in texts], np.int64)
    key = slot[column[rows]] * len(trace.names) + trace.records.name[rows]
    order = np.argsort(key, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []
    for group in sorted(groups, key=itemgetter(0)):
        collective, name = divmod(int(key[group[0]]), len(trace.names))
        yield rows[group], name, distinct[collective]


class _Numbering(dict[Collective, int]):
    """Numbers of distinct collectives, in the order in which they are met."""

    def __init__(self, recorded: tuple[Collective, ...]) -> None:
        super().__init__()
        self._recorded = recorded

    def described(self, given: Int32s, *, crowded: Bools) -> Int32s:
        """Number recorded collectives, (n,) int32, without a size where `crowded`; -1 stays."""
        numbers = np.full(len(given), -1, np.int32)
        for several in (False, True):
            of_recorded = np.full(len(self._recorded) + 1, -1, np.int32)
            mine = (crowded == several) & (given >= 0)
            for index in used_names(given[mine], len(self._recorded)).tolist():
                of_recorded[index] = self._number(self._plain(index, sized=not several))
            numbers[mine] = of_recorded[given[mine]]
        return numbers

    def named(self, numbers: Int32s, column: Int32s, texts: Sequence[str]) -> Int32s:
        """Fill `numbers` that are -1 by name alone; `column` is an index into `texts` or -1."""
        open_ = (numbers < 0) & (column >= 0)
        of_text = np.full(len(texts) + 1, -1, np.int32)
        for index in used_names(column[open_], len(texts)).tolist():
            of_text[index] = self._number(Collective(name=bounded(collective_name(texts[index]))))
        return np.where(open_, of_text[column], numbers)

    def _number(self, collective: Collective) -> int:
        return self.setdefault(collective, len(self))

    def _plain(self, index: int, *, sized: bool) -> Collective:
        given = self._recorded[index]
        called = None if given.group_description == _NO_DESCRIPTION else given.group_description
        plain = replace(
            given,
            name=bounded(collective_name(given.name)),
            group=None if given.group is None else bounded(given.group),
            group_description=None if called is None else bounded(called),
        )
        return plain if sized else replace(plain, in_elements=None, out_elements=None)


def _described(trace: Trace) -> Int64s:
    idle = np.array([collective_name(each.name) in _IDLE for each in trace.collectives], np.bool_)
    spans = np.flatnonzero(trace.spans.collective >= 0)
    return spans[~idle[trace.spans.collective[spans]]] if len(spans) else spans


def _names_around(trace: Trace, launched: Moments) -> tuple[Int32s, Sequence[str]]:
    spans = trace.spans
    annotation = names_matching(trace.names, _ANNOTATION).take(spans.name)
    around = Nesting(spans, np.flatnonzero(annotation)).innermost(launched)
    column = np.full(len(around), -1, np.int32)
    column[around >= 0] = spans.name[around[around >= 0]]
    return column, trace.names


def _own_names(trace: Trace, name: Int32s) -> tuple[Int32s, Sequence[str]]:
    """Return for each kernel the index of the collective in its name, -1 none; and these texts."""
    texts: list[str] = []
    of_name = np.full(len(trace.names), -1, np.int32)
    for index in used_names(name, len(trace.names)).tolist():
        if found := _IN_NAME.search(trace.names[index]):
            of_name[index] = len(texts)
            texts.append(next(filter(None, found.groups())))
    return of_name.take(name), texts
