"""Sampling ticks without Python: a small C library, and the code that passes plans to it."""
