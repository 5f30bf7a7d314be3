"""A client of this node's agent: where it answers, and its answers as typed values."""
