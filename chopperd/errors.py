"""The error classes, one for each reaction of the caller; every message is one line for people."""

from enum import StrEnum


class ChopperdError(Exception):
    """Base of every error that chopperd raises on purpose."""

    exit_code = 1


class ConfigError(ChopperdError):
    """The configuration or a command line is wrong; lists all problems at once."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class BackendUnavailableError(ChopperdError):
    """A back end can't be used here; automatic selection tries the next, else exit 3."""

    exit_code = 3


class DeviceError(ChopperdError):
    """A driver call failed on one device.

    Attributes:
        operation: Name of the vendor call.
        device_index: The driver's index of the device; None for calls on the whole driver.
        vendor_code: The vendor's return code, where there was one.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        operation: str,
        device_index: int | None = None,
        vendor_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.device_index = device_index
        self.vendor_code = vendor_code


class UnsupportedFieldError(DeviceError):
    """The device does not report this field; it is absent and probed again each minute."""


class TransientDeviceError(DeviceError):
    """The call failed this time; it is counted and the next tick tries again."""


class DeviceLostError(DeviceError):
    """The device answers no call any more; reading stops and it is probed each minute."""


class TraceError(ChopperdError):
    """A trace file can't be used; counted by outcome, never stops the agent.

    Attributes:
        path: The file, as given.
        offset: Byte offset of the fault in the (decompressed) file; None if unknown.
    """

    exit_code = 4

    def __init__(self, message: str, *, path: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class TraceFormatError(TraceError):
    """The file is not a Kineto trace, or is too damaged to use; the message says where."""


class UnrelatedTracesError(ChopperdError):
    """Traces given together are of different jobs; the message says how, and how to choose."""

    exit_code = 4


class IncomparableError(ChopperdError):
    """Runs that are not to be compared; `allow` names what would have to be allowed, if that."""

    exit_code = 2

    def __init__(self, message: str, *, allow: str | None) -> None:
        super().__init__(message)
        self.allow = allow


class TimebaseError(TraceError):
    """Trace and samples can't be aligned on one time axis."""


class StoreError(ChopperdError):
    """A stored file can't be read or written: full, locked, or corrupt."""

    exit_code = 4


class IngestReason(StrEnum):
    """Why a trace is not accepted."""

    OFF = "off"
    TOO_LARGE = "too large"
    NO_ROOM = "no room"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not found"
    BUSY = "busy"


class IngestError(ChopperdError):
    """A trace is not accepted, for `reason`; nothing of it is stored."""

    def __init__(self, message: str, *, reason: IngestReason) -> None:
        super().__init__(message)
        self.reason = reason


class StepNotFoundError(ChopperdError):
    """A report has no such step; the message says which steps it has."""


class AgentUnreachableError(ChopperdError):
    """No agent answers at the addresses tried."""


class AgentRefusedError(ChopperdError):
    """The agent refused a request, with this HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
