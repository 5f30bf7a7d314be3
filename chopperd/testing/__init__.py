"""What every back end owes its callers, as tests for packages that bring one.

It needs pytest, which chopperd itself does not.
"""

from chopperd.testing.contract import CREDIBLE, FAST_FIELDS, BackendContract, reported
from chopperd.testing.plans import carried_out

__all__ = ["CREDIBLE", "FAST_FIELDS", "BackendContract", "carried_out", "reported"]
