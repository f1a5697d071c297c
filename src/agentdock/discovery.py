"""Where a gateway runs and where its token lies, so that programs of the same user find both by themselves.

Standard library only: clients import this.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

TOKEN_VARIABLE = "AGENTDOCK_TOKEN"
GATEWAY_FILE = "gateway.json"
TOKEN_FILE = "token"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class TokenProblem(Exception):
    """A token that cannot be read, written or trusted; the text names the file and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """A gateway as it announces itself. ``token_file`` is empty where the token came from the environment."""

    url: str
    pid: int
    token_file: str = ""
    state_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The token and where it is kept: a file, or the environment variable if ``file`` is None."""

    value: str
    file: Path | None

    def __repr__(self) -> str:
        return f"Token(file={self.file})"

    @property
    def place(self) -> str:
        return f"it is in {self.file}" if self.file else f"the gateway was given it in {TOKEN_VARIABLE}"


def user_state_dir() -> Path:
    """The per-user folder for state: ``$XDG_STATE_HOME/agentdock``."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "agentdock"


def own_token(state_dir: Path, token_file: Path | None = None) -> Token:
    """The token of a gateway that starts: of ``token_file``, else ``AGENTDOCK_TOKEN``, else one kept in ``state_dir``.

    A file that does not exist is written with a new token, readable by its owner alone. Raises ``TokenProblem``.
    """
    value = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token_file is None and value:
        return Token(value=value, file=None)
    path = token_file or state_dir / TOKEN_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32) + "\n")
        return Token(value=read_token(path), file=path)
    except OSError as error:
        raise TokenProblem(f"token file {path}: {error.strerror or error}") from None


def read_token(path: Path) -> str:
    """The token in ``path``; refuses an empty file and one that others may read."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise TokenProblem(f"token file {path} can be read by other users; run: chmod 600 {path}")
    value = path.read_text(encoding="utf-8").strip()
    if not value:
        raise TokenProblem(f"token file {path} is empty; delete it, and the gateway writes a new one")
    return value


def announce(gateway: RunningGateway, state_dir: Path) -> tuple[Path, ...]:
    """Write ``gateway.json`` into ``state_dir`` and a copy, by port, where clients of this user look."""
    paths = (state_dir / GATEWAY_FILE, _user_file(gateway.url))
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, json.dumps(asdict(gateway), indent=2) + "\n")
    return paths


def withdraw(paths: tuple[Path, ...], pid: int) -> None:
    """Remove announcements, unless another gateway has replaced them since."""
    for path in paths:
        found = read_gateway(path)
        if found is not None and found.pid == pid:
            path.unlink(missing_ok=True)


def read_gateway(path: Path) -> RunningGateway | None:
    """The gateway that ``path`` announces; None if there is no such file or it cannot be read."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return RunningGateway(**fields)
    except (OSError, ValueError, TypeError):
        return None


def find_gateway(url: str) -> RunningGateway | None:
    """The gateway of this user that listens at a loopback ``url``, if one has announced itself and is alive."""
    if (urlsplit(url).hostname or "") not in LOOPBACK:
        return None
    gateway = read_gateway(_user_file(url))
    return gateway if gateway is not None and is_alive(gateway.pid) else None


def find_token(url: str) -> str | None:
    """The token for ``url``: ``AGENTDOCK_TOKEN``, else that of this user's own gateway there, else None.

    The variable is meant for the gateway that the caller named, wherever that is; a file's token never leaves the
    machine.
    """
    value = os.environ.get(TOKEN_VARIABLE, "").strip()
    if value:
        return value
    gateway = find_gateway(url)
    if gateway is None or not gateway.token_file:
        return None
    try:
        return read_token(Path(gateway.token_file))
    except (OSError, TokenProblem):
        return None


def write_private(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all, readable by its owner alone."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _user_file(url: str) -> Path:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return user_state_dir() / "gateways" / f"{port}.json"


def is_alive(pid: int) -> bool:
    """Whether a process has this id, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OSError):
        return True
    return True
