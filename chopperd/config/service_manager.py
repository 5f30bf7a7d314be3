"""What the service manager that started this process says in the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceManager:
    """How to reach systemd, where it started this process.

    Attributes:
        notify_address: Socket for status messages ("@" first: an abstract one); None without one.
        watchdog_s: How often it wants a sign of life; None where it does not.
    """

    notify_address: str | None = None
    watchdog_s: float | None = None


def service_manager(environment: Mapping[str, str] | None = None) -> ServiceManager:
    """What this process was told.

    Source: sd_notify(3), sd_watchdog_enabled(3): `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.

    Args:
        environment: Variables; None takes those of this process.
    """
    variables = os.environ if environment is None else environment
    period = variables.get("WATCHDOG_USEC", "")
    is_ours = variables.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return ServiceManager(
        notify_address=variables.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(period) / 1e6 if is_ours and period.isdecimal() and int(period) else None,
    )
