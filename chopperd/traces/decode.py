"""Bytes of trace events to typed columns; no files here."""
