"""The per-node agent: its threads and how they are kept going."""
