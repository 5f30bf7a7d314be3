"""Probes what a GPU answers and what each call costs, by field, for `chopperd devices`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from chopperd.clock import Clock
from chopperd.devices.faults import CallFailedError, DeviceFaults
from chopperd.errors import DeviceLostError
from chopperd.model.devices import FieldProbe

_P50, _P99 = 0.5, 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProber:
    """Makes calls several times and times them; failures are not counted in `faults`."""

    faults: DeviceFaults  # classifies errors, and stores which call gives each field
    clock: Clock  # times the calls
    calls_count: int  # number of times that a call that answers is made

    def is_selected(self, field: str, operation: str) -> bool:
        """Return whether this operation gives a field now."""
        return self.faults.selected.get(field) == operation

    def asked(
        self, base: FieldProbe, ask: Callable[[], float | None], most: int | None = None
    ) -> FieldProbe:
        """Make a call repeatedly; return `base` with the last answer and call times, or the error.

        Args:
            base: What is known before the call.
            ask: Makes the call.
            most: Upper limit of `calls_count` for a call that takes long.

        Raises:
            DeviceLostError: The GPU is gone.
        """
        spans_ns: list[int] = []
        value = None
        for _ in range(max(min(self.calls_count, most or self.calls_count), 1)):
            started_ns = self.clock.mono_ns()
            try:
                value = ask()
            except (self.faults.vendor_error, CallFailedError) as error:
                failed = self._failed(base, error)
                if not spans_ns:
                    return failed
                break
            spans_ns.append(self.clock.mono_ns() - started_ns)
        return replace(
            base,
            value=value,
            calls_count=len(spans_ns),
            call_p50_ns=_quantile(spans_ns, _P50),
            call_p99_ns=_quantile(spans_ns, _P99),
        )

    def _failed(self, base: FieldProbe, error: Exception) -> FieldProbe:
        base = replace(base, used=False, calls_count=1)
        if isinstance(error, CallFailedError):
            return replace(base, error="not reported")
        failure = self.faults.classified(error, base.operation)
        if isinstance(failure, DeviceLostError):
            raise failure from error
        return replace(base, error=str(error), error_code=failure.vendor_code)


def used_if_answered(*probes: FieldProbe) -> tuple[FieldProbe, ...]:
    """Mark the first probe that answers as used, for a field that is read once at the start."""
    first = next((probe for probe in probes if probe.answers), None)
    return tuple(replace(probe, used=probe is first) for probe in probes)


def _quantile(spans_ns: list[int], share: float) -> int:
    """Return the smallest of the values that at least this share of them do not exceed."""
    return sorted(spans_ns)[max(0, math.ceil(share * len(spans_ns)) - 1)]
