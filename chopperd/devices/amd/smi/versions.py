"""Which library of AMD SMI a version of its binding was made for; pure."""

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, int]

#: From here on a binding's version is the library's own; below, it is that of a release of ROCm.
_OWN_NUMBERS_FROM: Final = 20
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")

#: The library's version in each series of ROCm. Source: "AMD SMI (...)" in the consolidated
#: changelogs of ROCm 6.2 to 7.2.
_LIBRARY_BY_ROCM: Final[Mapping[Version, frozenset[Version]]] = {
    (6, 2): frozenset({(24, 6)}),
    (6, 3): frozenset({(24, 7)}),
    (6, 4): frozenset({(25, 3), (25, 4), (25, 5)}),
    (7, 0): frozenset({(26, 0)}),
    (7, 1): frozenset({(26, 1)}),
    (7, 2): frozenset({(26, 2)}),
}


def fits(binding: str | None, library: tuple[int, ...]) -> bool | None:
    """Whether a binding was made for a library; None where its version does not say.

    Structures change with the second number at most.

    Args:
        binding: What the binding says of itself: "7.0.2" (of PyPI), "26.0.2+39589fda" (of ROCm).
        library: The library's numbers.
    """
    numbers = _numbers(binding)
    if numbers is None:
        return None
    if numbers[0] >= _OWN_NUMBERS_FROM:
        return numbers == library[:2]
    made_for = _LIBRARY_BY_ROCM.get(numbers)
    return None if made_for is None else library[:2] in made_for


def rocm_of(library: tuple[int, ...]) -> str | None:
    """The series of ROCm that a library is of ("6.4"); None where that is not known."""
    for rocm, versions in _LIBRARY_BY_ROCM.items():
        if library[:2] in versions:
            return f"{rocm[0]}.{rocm[1]}"
    return None


def _numbers(version: str | None) -> Version | None:
    found = _NUMBERS.match(version or "")
    return (int(found[1]), int(found[2])) if found else None
