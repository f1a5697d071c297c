"""Scores for answers; every scorer runs in a worker that can be killed."""
