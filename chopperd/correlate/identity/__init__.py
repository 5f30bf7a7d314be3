"""Which GPU and which run a trace belongs to."""
