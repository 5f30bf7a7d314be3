"""The keys of a trace document that say something of the trace, as JSON texts; no events here.

Documents may hold megabytes of other keys, and the text may be damaged: all is passed over once,
and no value is made of what is not read.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from chopperd.traces.decode import NO_TEXT, Fault, Refusal, first_value
from chopperd.traces.text import repaired

BASE_TIME: Final = "baseTimeNanoseconds"
ROCM_KEYS: Final = frozenset({"hip_runtime_version", "hip_driver_version", "roctracer_version"})
CUDA_KEYS: Final = frozenset({"cuda_runtime_version", "cuda_driver_version", "cupti_version"})

_KEYS: Final = (
    *(BASE_TIME, "deviceProperties", "distributedInfo", "trace_id"),
    *("chopperd_devices", "chopperd_job", "chopperd_run", "chopperd_simulated"),
    *sorted(ROCM_KEYS | CUDA_KEYS),
)
_TEXTS: Final = msgspec.json.Decoder(
    msgspec.defstruct("_Texts", [(key, Raw, NO_TEXT) for key in _KEYS])
)

Texts: TypeAlias = Mapping[str, bytes]
"""JSON texts by key."""


def document_texts(text: bytes) -> Texts | Refusal:
    """The texts of the keys that are read, of a JSON object; what follows the object is ignored.

    Bytes that are no UTF-8 may be left in them, and half surrogates where no others are.
    """
    found = first_value(_TEXTS, memoryview(text))
    if isinstance(found, Refusal) and found.fault is not Fault.INVALID:
        sound = repaired(text, final=True)
        found = found if sound == text else first_value(_TEXTS, memoryview(sound))
    if isinstance(found, Refusal):
        return found
    return {key: bytes(value) for key, value in msgspec.structs.asdict(found[0]).items() if value}


def is_cut_short(texts: Texts | Refusal) -> bool:
    """Whether the text was no more than the sound beginning of a JSON object."""
    return isinstance(texts, Refusal) and texts.fault is Fault.INCOMPLETE
