"""A site's own kernel classes in the configuration: what is taken, what is said of the rest."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chopperd.config.load import load_config
from chopperd.config.table import CLASS_RULES, LONGEST_PATTERN, MOST_REPETITIONS
from chopperd.errors import ConfigError
from chopperd.model.kinds import KERNEL_CLASSES, KernelClass
from chopperd.pipeline.reports import configured_options
from chopperd.traces.kernels.classes import (
    COMMUNICATION,
    LIBRARIES,
    MATCHED_LENGTH,
    WORDS,
    ClassRule,
)

NO_FILE = None
VARIABLE = "CHOPPERD_TRACES__CLASSES"
NONE_OF_ALL = "is none of " + " | ".join(each.label for each in KERNEL_CLASSES)


def why_not(pattern: object) -> str | None:
    rules = [{"class": "comm", "pattern": pattern}]
    return None if CLASS_RULES.accepts(rules) else CLASS_RULES.why_not(rules)


def test_rules_reach_the_reports_in_their_order() -> None:
    text = '[{class = "comm", pattern = "^our_"}, {class = "gemm", pattern = "[*+]{2}"}]'
    options = configured_options(load_config(NO_FILE, {VARIABLE: text}))
    assert options.class_rules == (
        ClassRule(KernelClass.COMM, "^our_"),
        ClassRule(KernelClass.GEMM, "[*+]{2}"),
    )


@pytest.mark.parametrize("each", KERNEL_CLASSES)
def test_every_class_may_be_given(each: KernelClass) -> None:
    assert CLASS_RULES.accepts([{"class": each.label, "pattern": "x"}])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5", ' = 5 is not allowed: a list of {class = "comm", pattern = "regular expression"}'),
        ("[5]", ", rule 1: 5 must have class and pattern, and nothing else"),
        (
            "[{class = 'comm'}]",
            ", rule 1: {'class': 'comm'} must have class and pattern, and nothing else",
        ),
        ("[{class = 'gem', pattern = 'x'}]", f", rule 1: class 'gem' {NONE_OF_ALL}"),
        ("[{class = ['gemm'], pattern = 'x'}]", f", rule 1: class ['gemm'] {NONE_OF_ALL}"),
        (
            "[{class = 'comm', pattern = '[[a]'}]",
            ", rule 1: pattern '[[a]' is not a regular expression: Possible nested set at"
            " position 1",
        ),
        ("[{class = 'comm', pattern = 5}]", ", rule 1: pattern 5 is not a text"),
        ("[{class = 'comm', pattern = ''}]", ", rule 1: pattern '' is not a text"),
        (
            "[{class = 'comm', pattern = 'x'}, {class = 'comm', pattern = 'a('}]",
            ", rule 2: pattern 'a(' is not a regular expression: missing ), unterminated subpattern"
            " at position 1",
        ),
        (
            "[{class = 'comm', pattern = '(a+)+$'}]",
            ", rule 1: pattern '(a+)+$' repeats a group, which can take forever: repeat single"
            " characters",
        ),
    ],
)
def test_a_wrong_rule_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(NO_FILE, {VARIABLE: text})
    assert caught.value.problems == [f"{VARIABLE}: traces.classes{why}"]
    assert "\n" not in why


@pytest.mark.parametrize(
    "pattern",
    ["(a|a)*b", "(?:x+)+y", "(a*){5}", "(ab){2,}", r"(\)|a)+", "a(b)*?", "a*b*c*d*", "x" * 201],
)
def test_a_pattern_that_may_take_forever_is_refused(pattern: str) -> None:
    assert why_not(pattern) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "^our_(?:gemm|matmul)_",
        "ours::.*_reduce.*_bf16",
        r"our\(\)*x",
        "our[()*+]+",
        "[]+*)]*x",
        r"\d{4}\d{4}\d{4}\d{4}",
        "(a|b)?c",
        "a++",
        "x" * LONGEST_PATTERN,
    ],
)
def test_patterns_as_a_site_writes_them_are_taken(pattern: str) -> None:
    assert why_not(pattern) is None


def test_the_slowest_pattern_that_is_taken_ends_on_a_name_that_defeats_it() -> None:
    pattern = "a*" * MOST_REPETITIONS + "!"
    assert why_not(pattern) is None
    # Half as long as names can be: a 16th of the longest time, where `(a*)*!` would take years.
    assert re.search(pattern, "a" * (MATCHED_LENGTH // 2)) is None


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab()[]{}*+?|\\^$.,1", max_size=20))
def test_any_text_is_a_pattern_or_is_refused_with_a_reason(text: str) -> None:
    why = why_not(text)
    assert why is None or why.startswith(", rule 1: pattern ")


def test_the_built_in_table_repeats_no_group_either() -> None:
    for rule in (*LIBRARIES, *COMMUNICATION, *WORDS):
        why = why_not(rule.pattern[:LONGEST_PATTERN]) or ""
        assert "forever" not in why
