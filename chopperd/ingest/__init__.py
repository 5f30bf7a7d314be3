"""Traces into the agent: inbox, uploads, queue, and the analysis worker's process."""
