"""The trainer: batches in, weights out. Names are loaded when asked for: they need torch."""
