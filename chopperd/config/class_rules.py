"""A site's own kernel classes in the configuration: which rules are taken, and why others are not.

What the rules are good for is in `traces.class_table`, which this does not know.
"""

import re
import warnings
from dataclasses import dataclass
from typing import Final

from chopperd.model.classes import KERNEL_CLASSES

LONGEST_PATTERN: Final = 200
#: With so few, and names cut to 256 characters, a slow expression takes about a second a name.
MOST_REPETITIONS: Final = 3

_CLASSES: Final = tuple(each.label for each in KERNEL_CLASSES)
_KEYS: Final = {"class", "pattern"}
#: An escape, a set of characters, a repetition (`open`: of no fixed number), or a group's end.
_TOKEN: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]"
    r"|(?P<repetition>(?P<open>[*+]|\{\d*,\d*\})|\{\d+\})[?+]?|\)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ClassRules:
    """A list of tables `{class, pattern}`; patterns known to take forever are refused."""

    allowed: str = 'a list of {class = "comm", pattern = "regular expression"}'

    def accepts(self, value: object) -> bool:
        """Whether every entry is a rule."""
        return self.why_not(value) is None

    def why_not(self, value: object) -> str | None:
        """What is wrong, to be put behind the key's name; None if nothing is."""
        if not isinstance(value, list):
            return f" = {value!r} is not allowed: {self.allowed}"
        whys = ((number, _why_not(entry)) for number, entry in enumerate(value, start=1))
        return next((f", rule {number}: {why}" for number, why in whys if why), None)


def _why_not(entry: object) -> str | None:
    """What is wrong with one rule; None if nothing is."""
    if not isinstance(entry, dict) or entry.keys() != _KEYS:
        return f"{entry!r} does not have class and pattern, and nothing else"
    if entry["class"] not in _CLASSES:
        return f"class {entry['class']!r} is none of {' | '.join(_CLASSES)}"
    why = _why_no_pattern(entry["pattern"])
    return None if why is None else f"pattern {entry['pattern']!r} {why}"


def _why_no_pattern(pattern: object) -> str | None:
    """What is wrong with a pattern; None if nothing is."""
    if not isinstance(pattern, str) or not pattern:
        return "is no text"
    if len(pattern) > LONGEST_PATTERN:
        return f"has more than {LONGEST_PATTERN} characters"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python will read in another way one day
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        return f"is no regular expression: {error}"
    return _why_slow(pattern)


def _why_slow(pattern: str) -> str | None:
    """Why an expression may take very long on a name that it does not fit; None if no reason is.

    A repeated group can double the time with every character. Where only single characters are
    repeated, it grows with the name's length to the power of the number of repetitions.
    """
    repetitions = 0
    before: re.Match[str] | None = None
    for token in _TOKEN.finditer(pattern):
        behind = before is not None and before.end() == token.start() and before.group()
        if token["repetition"] and behind == ")":
            return "repeats a group, which can take forever: repeat single characters"
        repetitions += token["open"] is not None
        before = token
    if repetitions > MOST_REPETITIONS:
        return f"has more than {MOST_REPETITIONS} repetitions, which can take very long"
    return None
