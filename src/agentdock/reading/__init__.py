"""Documents as text for a model: what a file is, its words, its links, its picture, and what was left out."""

from agentdock.reading.document import Document, Picture, ReadProblem
from agentdock.reading.workers import Readers

__all__ = ["Document", "Picture", "ReadProblem", "Readers"]
