"""Drive the steps from trace files to a report; no printing, no parsing of options."""
