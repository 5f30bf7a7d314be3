"""The clock as a function of time, made from samples: lines, lag, precision, sensor updates."""
