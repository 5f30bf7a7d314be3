"""The README's table of metrics."""

import pytest

from chopperd.export.catalogue import metrics_table, with_table


def test_a_metric_has_a_line_and_a_closed_label_its_values() -> None:
    lines = metrics_table().splitlines()
    line = "| `chopperd_gpu_temperature_celsius` | gauge | `gpu`, `sensor` | minimal | Newest"
    assert any(each.startswith(line) for each in lines)
    assert "| `fault` | `read`, `lost`, `invalid` |" in lines


def test_what_stands_between_the_marks_is_replaced_and_the_rest_is_kept() -> None:
    readme = "# x\n\n<!-- metrics -->\nold\n<!-- /metrics -->\nend\n"
    made = with_table(readme)
    assert made == f"# x\n\n<!-- metrics -->\n{metrics_table()}<!-- /metrics -->\nend\n"
    assert with_table(made) == made


def test_a_readme_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="metrics"):
        with_table("# chopperd\n")
