"""Policies: loading, tree attention and chunked log-probs. Names are loaded when asked for: they need torch."""
