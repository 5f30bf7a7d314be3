"""The configuration: its keys, its sections, and how it is read."""
