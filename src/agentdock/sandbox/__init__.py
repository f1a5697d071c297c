"""Run code that nobody has read: in a container, in namespaces or within limits, whichever this machine can."""
