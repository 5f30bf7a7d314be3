"""The keys of a trace document that say something of the trace, as JSON texts; no events here.

Documents may hold megabytes of other keys, and the text may be damaged: all is passed over once,
and no value is made of what is not read.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Raw

from chopperd.traces.decode import NO_TEXT, Fault, Refusal, first_value
from chopperd.traces.text import may_lack_value, with_nulls

BASE_TIME: Final = "baseTimeNanoseconds"
ROCM_KEYS: Final = frozenset({"hip_runtime_version", "hip_driver_version", "roctracer_version"})
CUDA_KEYS: Final = frozenset({"cuda_runtime_version", "cuda_driver_version", "cupti_version"})

_KEYS: Final = (
    *(BASE_TIME, "deviceProperties", "distributedInfo", "trace_id", "host_name", "HOSTNAME"),
    *("chopperd_devices", "chopperd_job", "chopperd_run", "chopperd_simulated"),
    *sorted(ROCM_KEYS | CUDA_KEYS),
)
_TEXTS: Final = msgspec.json.Decoder(
    msgspec.defstruct("_Texts", [(key, Raw, NO_TEXT) for key in _KEYS])
)

_ODD: Final = {b"NaN": b"1e0", b"Infinity": b"1e000000", rb"\ud": rb"\u0", rb"\uD": rb"\u0"}
"""No numbers, halves of pairs of surrogates; and what may stand there, in a text as elsewhere."""
_ODD_BYTES: Final = 16
"""From where a parser refuses one of them to its end, or its beginning, at the most."""

_MENDED_BYTES: Final = 1 << 16
"""Longer texts are not looked through for values that are missing: it takes too long."""

Texts: TypeAlias = Mapping[str, bytes]
"""JSON texts by key."""


def document_texts(text: bytes, *, mend: bool = True) -> Texts | Refusal:
    """The texts of the keys that are read, of a JSON object; what follows the object is ignored.

    They are as they stand in the document, with whatever strict readers refuse in them.

    Args:
        text: The document.
        mend: Whether a value that is missing, or is none, is null; else it is no JSON.
    """
    found = first_value(_TEXTS, memoryview(text))
    strict = text
    if isinstance(found, Refusal) and _may_be_odd(text, found):
        strict = _strict(text)
        found = first_value(_TEXTS, memoryview(strict))
    if isinstance(found, Refusal):
        return _mended(text, found) if mend else found
    values = {key: one for key, one in msgspec.structs.asdict(found[0]).items() if bytes(one)}
    starts = {key: _address(one) - _address(strict) for key, one in values.items()}
    return {key: text[at : at + len(bytes(values[key]))] for key, at in starts.items()}


def _mended(text: bytes, refusal: Refusal) -> Texts | Refusal:
    """The same of a text with null for what is missing in it; the refusal where that is not all."""
    is_due = refusal.fault is Fault.MALFORMED and len(text) <= _MENDED_BYTES
    if not is_due or not may_lack_value(text, refusal.offset):
        return refusal
    found = first_value(_TEXTS, memoryview(with_nulls(text)))
    if isinstance(found, Refusal):
        return refusal
    values = {key: bytes(one) for key, one in msgspec.structs.asdict(found[0]).items()}
    return {key: value for key, value in values.items() if value}


def _may_be_odd(text: bytes, refusal: Refusal) -> bool:
    """Whether a parser may have refused what strict readers refuse in sound text."""
    if refusal.offset is None:  # as for half a pair
        return True
    around = text[max(refusal.offset - _ODD_BYTES, 0) : refusal.offset + _ODD_BYTES]
    return any(odd in around for odd in _ODD)


def _strict(text: bytes) -> bytes:
    """Text of the same form and length without what strict readers refuse in sound text."""
    for odd, plain in _ODD.items():
        text = text.replace(odd, plain)
    return text


def _address(text: bytes | Raw) -> int:
    """Where a text lies: values are views of the document."""
    address: int = np.frombuffer(text, np.uint8).ctypes.data
    return address


def is_cut_short(texts: Texts | Refusal) -> bool:
    """Whether the text was no more than the sound beginning of a JSON object."""
    return isinstance(texts, Refusal) and texts.fault is Fault.INCOMPLETE
