"""Files that outlive a process: sample files."""
