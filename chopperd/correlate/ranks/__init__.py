"""The ranks of one job compared: collectives matched over ranks, waits, own work, stragglers."""
