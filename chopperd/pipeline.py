"""From trace files and samples to a report document; no printing, no parsing of options."""
