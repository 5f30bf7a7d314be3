"""Findings: what cost most, what to do about it, and what each code means."""
