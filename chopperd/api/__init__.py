"""The REST API and the metrics listener: what leaves the agent over HTTP, and to whom."""
