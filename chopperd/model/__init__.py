"""Immutable data that the parts exchange; no behaviour beyond what the data themselves imply.

Conventions that hold in every module here: times are int64 ns, intervals half-open `[start, end)`,
ratios 0..1; in objects `None` is "not reported", in float columns NaN is; 0 is zero.
"""
