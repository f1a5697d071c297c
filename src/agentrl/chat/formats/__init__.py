"""Tool-call formats: one file per format, each a function from a reply's text to content and attempted calls."""
