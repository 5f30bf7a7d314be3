"""Simulated GPUs and training jobs with known truth: a pure function of (seed, preset, start)."""
