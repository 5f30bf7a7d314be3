"""Kernel families: one name for all launches of one kernel, whatever its parameters' types."""

import re
from typing import Final

from chopperd.traces.kernels.kernel_names import LONGEST_READ, bare_name
from chopperd.traces.kernels.names import LONGEST_NAME, checksum

UNNAMED: Final = "(no name)"

#: Kinds of kernels as Inductor writes them: pointwise, reductions, templates, foreach, mixed.
_INDUCTOR_NUMBER: Final = re.compile(
    r"^(triton_(?:poi|red|per|tem|for|mix|unk|spl|split_scan)_.*?)(?:_\d+)+$"
)
_TRITON_SIGNATURE: Final = re.compile(r"^(\w+?)_(0[dec]*1[dec\d]*)$")
_SIGNATURE_LETTERS: Final = re.compile(r"[dec]+")
_SHORTENED: Final = re.compile(r"~[0-9a-f]{8}$")
_CHECKSUM_LENGTH: Final = 9


def family(kernel_name: str) -> str:
    """The normalised name of a kernel; what differs only in what is dropped here is one family.

    Dropped: the return type, the parameter list, unnamed namespaces, a compiler's clone marks, the
    running number that Inductor appends (`triton_poi_fused_add_3`: it changes with any change to
    the model, so that a comparison of two runs would find nothing to pair) and the signature that
    Triton appended before its version 3 (`attn_fwd_0d1d2de`). Of mangled names the namespaces are
    read, so that a kernel has one family in both spellings unless it is a template's.

    Template arguments stay, lambda numbers among them: they hold the functor and the dtype that
    tell one elementwise kernel, and the tile that tells one GEMM from another. A name longer than
    `LONGEST_NAME` characters is cut there and told from its like by a checksum of the whole.

    The family of a family is itself; a kernel without a name is of the family `UNNAMED`.
    """
    if len(kernel_name) == LONGEST_NAME + _CHECKSUM_LENGTH and _SHORTENED.search(kernel_name):
        return kernel_name
    name, before = kernel_name.strip(), ""
    while name != before:
        name, before = _without_numbers(bare_name(name).strip()) or name, name
    if len(name) <= LONGEST_NAME and len(kernel_name) <= LONGEST_READ:
        return name or UNNAMED
    whole = name if len(kernel_name) <= LONGEST_READ else kernel_name
    return f"{name[:LONGEST_NAME]}~{checksum(whole)}"


def _without_numbers(name: str) -> str:
    """A name without what Inductor or Triton appended to it."""
    name = _INDUCTOR_NUMBER.sub(r"\1", name)
    signed = _TRITON_SIGNATURE.match(name)
    # All kernels of old Inductor are called `triton_`: there the signature is all that tells them.
    if signed is None or signed[1] == "triton_" or not _is_signature(signed[2]):
        return name
    return signed[1]


def _is_signature(text: str) -> bool:
    """Whether it counts arguments from 0 on, marking some as divisible, equal to 1 or constant."""
    counted = _SIGNATURE_LETTERS.sub("", text)
    return counted != text and "".join(map(str, range(len(counted)))).startswith(counted)
