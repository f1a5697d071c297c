"""Searching on behalf of a model: one protocol for all engines, from a folder of texts to web services."""
