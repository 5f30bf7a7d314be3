"""Report documents for people and programs, made from joined rows."""
