"""Which traces form a capture, against connected components found by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.store.capture_store import CaptureStore
from tests.unit.store.captures import analysed, document, entry, opened, step_row, trace_id

Span = tuple[int, int] | None


def components(spans: list[Span]) -> set[frozenset[int]]:
    """Traces that touch, directly or by others; those without a time are one group."""
    group = list(range(len(spans)))
    for a, first in enumerate(spans):
        for b, second in enumerate(spans[:a]):
            both_loose = first is None and second is None
            touch = first and second and first[0] <= second[1] and second[0] <= first[1]
            if both_loose or touch:
                old, new = group[a], group[b]
                group = [new if each == old else each for each in group]
    return {frozenset(i for i, g in enumerate(group) if g == each) for each in set(group)}


def filed(store: CaptureStore, spans: list[Span]) -> set[frozenset[int]]:
    for number, span in enumerate(spans):
        store.put_trace(entry(f"{number}"))
        times = None if span is None else (float(span[0]), float(span[1]))
        capture, reports = store.file_analysed(analysed(f"{number}", times, rank=number))
        assert len(reports) == len(capture.trace_ids)
        store.put_document(capture.id, document([step_row(number)]))
    live = store.live()
    assert live.traces == len(spans)
    store.prune()
    assert store.live() == live, "what was counted by changes is what is there"
    captures: dict[int | None, set[int]] = {}
    for number in range(len(spans)):
        known = store.known(trace_id(f"{number}"))
        assert known is not None
        captures.setdefault(known.capture, set()).add(number)
    return {frozenset(each) for each in captures.values()}


spans = st.none() | st.tuples(st.integers(-50, 0), st.integers(0, 12)).map(
    lambda span: (span[0], span[0] + span[1])
)


@settings(max_examples=50, deadline=None)
@given(st.lists(spans, min_size=1, max_size=8))
def test_captures_are_what_overlaps_whatever_the_order_of_arrival(made: list[Span]) -> None:
    assert filed(opened(), made) == components(made)
