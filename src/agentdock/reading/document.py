"""What a reader makes of a file, and why it could not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

EXTRA = "pip install 'agentrl-mcp[dock]'"


class ReadProblem(Exception):
    """A document cannot be read; the text is a sentence that says why and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image for a model that sees: its media type and its bytes in base64."""

    media_type: str
    base64: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    text: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A document as text. ``notes`` say what the text does not show, such as pages without words."""

    kind: str
    text: str
    title: str = ""
    links: tuple[Link, ...] = ()
    notes: tuple[str, ...] = ()
    picture: Picture | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Document:
        picture = fields["picture"]
        return cls(
            kind=fields["kind"],
            text=fields["text"],
            title=fields["title"],
            links=tuple(Link(**link) for link in fields["links"]),
            notes=tuple(fields["notes"]),
            picture=None if picture is None else Picture(**picture),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The bytes of a document and what its origin says about them; ``url`` is the base of its links."""

    body: bytes
    name: str = ""
    content_type: str = ""
    url: str = ""


def library(module: str, what: str) -> ModuleType:
    """Import an optional library; raise ``ReadProblem`` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ReadProblem(
            f"{what} needs the library {module.partition('.')[0]}, which is not installed here ({error}); "
            f"the operator can install it with {EXTRA}"
        ) from error
