import json
import re

from chopperd.report.forms.columns import render_csv
from chopperd.report.forms.schema import formatted
from chopperd.report.text.report import render_text
from tests.unit.report.documents import eight_gpus


def test_each_form_has_its_renderer() -> None:
    document = eight_gpus()
    assert formatted(document, "text") == render_text(document)
    assert formatted(document, "text", by="family") == render_text(document, by="family")
    assert formatted(document, "csv") == render_csv(document)
    assert json.loads(formatted(document, "json"))["schema"] == "chopperd.report/1"


def test_styles_change_nothing_but_escape_codes() -> None:
    document = eight_gpus()
    styled = formatted(document, "text", styled=True)
    assert "\x1b[1m" in styled
    bare = re.sub(r"\x1b\[[\d;]*m", "", styled)
    assert [line.rstrip() for line in bare.splitlines()] == render_text(document).splitlines()
