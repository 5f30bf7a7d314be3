"""The REST API and the metrics listener: all that the agent serves over HTTP, with access rules."""
