"""Known-truth GPUs and training jobs: a pure function of (seed, preset, start time)."""
