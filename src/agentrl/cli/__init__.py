"""Commands; the only place where rooms are wired together."""
