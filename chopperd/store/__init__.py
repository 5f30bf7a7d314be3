"""Files that outlive a process: the store of captures, the flight recorder, sample files."""
