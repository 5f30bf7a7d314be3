"""The report document, made from joined traces."""
