"""Kernel names: class, family, FLOPs."""
