"""The simulator: a stream and a fleet in, a trace out."""
