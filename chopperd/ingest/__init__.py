"""Intake of traces into the agent: inbox, uploads, queue, and the analysis worker's process."""
