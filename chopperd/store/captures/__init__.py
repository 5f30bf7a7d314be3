"""Traces, captures, steps and drops in SQLite."""
