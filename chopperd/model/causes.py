"""The closed set of causes of a low clock, and their bit in a sample's `causes` column."""

from enum import IntEnum
from typing import Final


class Cause(IntEnum):
    """Why the clock was below its reference; the value is the bit's position in a sample.

    `UNEXPLAINED`: no limit was reported although the driver was asked; `UNKNOWN`: limits could
    not be read, or the driver reported a bit that this version does not know.
    """

    USER_LIMIT = 0
    POWER_CAP = 1
    THERMAL = 2
    HW_THERMAL = 3
    POWER_BRAKE = 4
    HW_SLOWDOWN = 5
    SYNC_BOOST = 6
    LOW_UTILIZATION = 7
    UNEXPLAINED = 8
    UNKNOWN = 9

    # Enum hashes by name in Python; sets and maps of causes are built for each sample.
    __hash__ = int.__hash__

    @property
    def label(self) -> str:
        """The name used outside: in files, documents and metrics."""
        return self.name.lower()

    @property
    def bit(self) -> int:
        """The cause's bit in a `causes` column."""
        return 1 << self.value


CAUSES: Final = tuple(Cause)
CAUSE_BY_LABEL: Final = {cause.label: cause for cause in Cause}

#: Causes that a driver can report in a sample. A sample whose `causes` is 0 was read and had none
#: of them set; a sample that could not be read has just `UNKNOWN`.
REPORTED_CAUSES: Final = tuple(cause for cause in Cause if cause is not Cause.UNEXPLAINED)
