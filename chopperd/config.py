"""The configuration: file, environment, defaults, all problems reported at once."""
