"""The scanner of events in C: the decoder of the trace reader where it could be compiled."""
