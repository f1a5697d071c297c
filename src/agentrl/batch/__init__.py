"""Rows to prefix trees to packed micro-batches; numpy only."""
