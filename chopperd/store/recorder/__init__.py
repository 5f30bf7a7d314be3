"""The flight recorder: every sample of the node on disk, within a bound."""
