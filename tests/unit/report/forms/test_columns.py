from msgspec import Struct
from msgspec.structs import replace

from chopperd.model.report import TraceSummary
from chopperd.model.report_rows import Row
from chopperd.report.forms.columns import (
    KEYS,
    columns_of,
    list_table,
    lists_of,
    record_table,
    row_table,
)
from tests.unit.report.documents import eight_gpus, trace


def test_a_column_is_named_by_the_path_to_its_value_and_has_its_kind() -> None:
    columns = {column.name: column for column in columns_of(Row)}
    assert columns["clock_compute_mean_mhz"].path == ("clock", "compute", "mean_mhz")
    kinds = {name: columns[name].kind for name in ("window_ns", "overlap_ratio", "tail", "gpu")}
    assert kinds == {"window_ns": int, "overlap_ratio": float, "tail": bool, "gpu": str}
    assert columns["clock_basis"].kind is str  # one of a closed set of words
    assert columns["dvfs_by_cause_ns_power_cap"].kind is int
    assert columns["partial_reasons"].kind is str


def test_lists_of_records_are_no_columns() -> None:
    assert {"families", "micro_steps", "copies", "collectives", "by_layer"} <= set(lists_of(Row))
    assert not set(lists_of(Row)) & {column.name for column in columns_of(Row)}


def test_every_value_of_a_row_is_in_its_column_as_it_is() -> None:
    document = eight_gpus()
    table = row_table(document)
    assert len(table) == len(document.steps) + len(document.totals)
    assert table.columns["row"] == ["step"] * len(document.steps) + ["total"] * len(document.totals)
    row = document.steps[0]
    assert row.waterfall_ns is not None
    assert table.columns["waterfall_ns_dvfs_loss"][0] == row.waterfall_ns.dvfs_loss
    assert table.columns["tokens"][0] is None


def test_an_item_of_a_list_has_the_key_of_its_row() -> None:
    document = eight_gpus()
    table = list_table(document, "families")
    rows = (*document.steps, *document.totals)
    expected = [(row.gpu, family.name, family.class_) for row in rows for family in row.families]
    found = zip(*(table.columns[name] for name in ("gpu", "name", "class")), strict=True)
    assert list(found) == expected
    assert expected
    assert set(KEYS) <= set(table.columns)


def test_an_items_own_number_does_not_hide_its_rows() -> None:
    table = list_table(eight_gpus(), "micro_steps")
    assert {"step", "item_step"} <= set(table.columns)


def test_counts_by_name_are_one_text() -> None:
    lossy = replace(trace(), lost={"damaged": 3, "cut": 1})
    assert record_table([lossy], TraceSummary).columns["lost"] == ["damaged:3+cut:1"]


def test_what_is_not_finite_is_unknown() -> None:
    class Number(Struct, frozen=True):
        value_mhz: float | None

    numbers = [Number(1.5), Number(float("nan")), Number(float("inf")), Number(None)]
    assert record_table(numbers, Number).columns["value_mhz"] == [1.5, None, None, None]
