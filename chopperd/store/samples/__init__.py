"""Sample files: our own format and those of other monitors."""
