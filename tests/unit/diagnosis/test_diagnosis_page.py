import json

from chopperd.diagnosis.facts import diagnosis_page, encode_findings, ok, problem, unknown
from chopperd.report.text.page import page_text

FOUND = (
    ok("agent", "none runs"),
    problem("kernel module", "not loaded", "modprobe nvidia"),
    unknown("clock", "NTP state not known"),
)


def test_a_line_a_finding_and_below_a_problem_its_fix() -> None:
    lines = page_text(diagnosis_page(FOUND)).splitlines()
    assert [line.split() for line in lines] == [
        ["DOCTOR"],
        ["ok", "agent", "none", "runs"],
        ["problem", "kernel", "module", "not", "loaded"],
        ["->", "modprobe", "nvidia"],
        ["unknown", "clock", "NTP", "state", "not", "known"],
        [],
        ["1", "problem", "found"],
    ]


def test_no_problem_is_said_and_long_lines_are_broken_inside_the_page() -> None:
    text = page_text(diagnosis_page((ok("GPUs", "word " * 60),)))
    assert text.endswith("no problem found\n")
    assert max(map(len, text.splitlines())) <= 100


def test_in_json_verdicts_are_words_and_no_fix_is_null() -> None:
    document = json.loads(encode_findings(FOUND))
    assert document["ok"] is False
    assert document["findings"][0] == {
        "check": "agent",
        "verdict": "ok",
        "text": "none runs",
        "fix": None,
    }
    assert json.loads(encode_findings(FOUND[::2]))["ok"] is True
