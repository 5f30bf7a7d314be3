"""Traces into the agent: inbox, uploads, queue, and the agent's end of the analysis worker."""
