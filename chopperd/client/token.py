"""The token that makes its bearer an administrator, and who may be told it."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chopperd.api.access import is_member_of

_ROOT_UID: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, and who can read the file that it comes from.

    Attributes:
        text: The token.
        owner_uid, group_gid, mode: Of the file.
    """

    text: str = field(repr=False)
    owner_uid: int
    group_gid: int
    mode: int

    def is_known_to(self, uids: Iterable[int]) -> bool:
        """Whether all of some users, one at least, can read the file by themselves."""
        known = [self._can_read(uid) for uid in uids]
        return bool(known) and all(known)

    def _can_read(self, uid: int) -> bool:
        if uid in (_ROOT_UID, self.owner_uid):
            return True
        is_for_group = bool(self.mode & stat.S_IRGRP)
        return is_for_group and is_member_of(uid, self.group_gid)


def read_token(path: str | None) -> Token | None:
    """The token in a file, if there is one that this user may read."""
    if path is None:
        return None
    try:
        with Path(path).open(encoding="ascii") as file:
            status, text = os.fstat(file.fileno()), file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not text:
        return None
    return Token(text=text, owner_uid=status.st_uid, group_gid=status.st_gid, mode=status.st_mode)
