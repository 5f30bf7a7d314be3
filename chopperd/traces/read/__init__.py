"""Reading: a trace file to its event tables."""
