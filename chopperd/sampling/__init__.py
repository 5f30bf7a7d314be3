"""Samples GPUs: read schedule, shared ring, the sampler process and its supervisor."""
