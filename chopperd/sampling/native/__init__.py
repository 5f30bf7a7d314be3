"""Sampling ticks without Python: a small C library, and what hands plans and memory to it."""
