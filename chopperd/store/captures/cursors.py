"""Where a page of step rows ended, as an opaque word."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

#: What orders rows: newest first, then (of rows without a time of their own) the last step. It is
#: made of what a row is, so a page stays where it was while rows come or are written anew.
KEY_COLUMNS: Final = ("order_unix_ns", "step", "rank", "device", "twin", "capture")

_Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Key: TypeAlias = tuple[_Int, _Int, _Int, _Int, _Int, _Int]

_DECODER: Final = msgspec.msgpack.Decoder(Key)
_LONGEST: Final = 128
_REFUSAL: Final = "the cursor is none that a page of steps gave"


def cursor_of(key: Sequence[int]) -> str:
    """The cursor that leads on from a row's key."""
    return urlsafe_b64encode(msgspec.msgpack.encode(tuple(key))).decode().rstrip("=")


def key_of(cursor: str) -> Key:
    """The row's key that a cursor leads on from.

    Raises:
        ValueError: It is none that `cursor_of` made.
    """
    if len(cursor) > _LONGEST:
        raise ValueError(_REFUSAL)
    try:
        key: Key = _DECODER.decode(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, msgspec.DecodeError) as error:
        raise ValueError(_REFUSAL) from error
    return key
