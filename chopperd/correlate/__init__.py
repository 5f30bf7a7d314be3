"""Joining samples with timelines: clock signal, losses, waterfall, causes (pure numpy)."""
