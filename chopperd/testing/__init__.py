"""The contract of a back end as tests, for packages that provide one; needs pytest."""

from chopperd.testing.contract import CREDIBLE, FAST_FIELDS, BackendContract, reported
from chopperd.testing.plans import carried_out

__all__ = ["CREDIBLE", "FAST_FIELDS", "BackendContract", "carried_out", "reported"]
