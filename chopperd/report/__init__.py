"""Documents for people and programs, made from joined rows."""
