"""The per-node agent: its threads, from start to shutdown."""
