"""Advantages, filters, reductions and losses."""
