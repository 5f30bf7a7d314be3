"""Asking the agent of this node: where it answers, and what it says as typed values."""
