"""Tests whether the sampled clock explains the time of matrix products on zeros and random data."""
