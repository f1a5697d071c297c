"""Task files, JSON lines or one JSON array, into tasks: refused as a whole if any row is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.tasks import scorers
from agentrl.tasks.rows import Row, Rules, TaskProblem
from agentrl.types import Task

MAX_SHOWN = 20
"""Problems in the text of an error; all of them are in ``problems``."""
HALF_CHARACTER = "a \\u escape in it is half of a surrogate pair, which is no character; write the whole character"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
BLANKS = re.compile(r"[ \t\r\n]*")


class TaskFileError(ConfigError):
    """A task file is wrong. ``problems`` are all of them, in file order; the text names file, line and field."""

    def __init__(self, path: Path, problems: Iterable[TaskProblem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        shown = [described(path, problem) for problem in self.problems[:MAX_SHOWN]]
        hidden = len(self.problems) - len(shown)
        super().__init__("\n".join([*shown, *([f"... and {hidden} more problems in {path}"] if hidden else [])]))


def load_tasks(
    path: str | Path,
    *,
    needs_truth: Callable[[Any], bool] | None = None,
    known_scorers: Collection[str] | None = None,
) -> list[Task]:
    """The tasks of a file, in its order.

    ``needs_truth(scorer)`` says whether a row with this scorer must have an answer; ``known_scorers`` are the names a
    row may use besides ``package.module:function`` and ``tool:NAME``; both default to the scorers of this process.
    Raises ``TaskFileError`` with every problem.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise TaskFileError(file, [TaskProblem(line=None, field=None, kind="missing", message=reason)]) from None
    rules = Rules(
        known_scorers=scorers.names() if known_scorers is None else known_scorers,
        needs_truth=needs_truth or scorers.needs_truth,
    )
    rows: list[Row] = []
    problems: list[TaskProblem] = []
    for item in read_rows(content.removeprefix(b"\xef\xbb\xbf")):
        if isinstance(item, TaskProblem):
            problems.append(item)
        else:
            rows.append(item)
            problems += item.problems(rules)
    problems += repeated_ids(rows)
    if not rows and not problems:
        problems = [TaskProblem(line=None, field=None, kind="empty_file", message="the file holds no task")]
    if problems:
        raise TaskFileError(file, sorted(problems, key=lambda problem: problem.line or 0))
    return [row.as_task() for row in rows]


def read_rows(content: bytes) -> Iterator[Row | TaskProblem]:
    """Rows of a JSON array if the file is one, else of its lines."""
    if content.startswith(UTF16_MARKS):
        yield whole_row(None, "encoding", "the file is UTF-16; save it as UTF-8")
        return
    if content.lstrip(b" \t\r\n").startswith(b"[") and (array := read_array(content)) is not None:
        yield from array
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield read_line(number, line.removesuffix(b"\r"))


def read_line(number: int, line: bytes) -> Row | TaskProblem:
    try:
        return checked_row(number, parse_json(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        found = line[error.start : error.start + 1]
        return whole_row(number, "encoding", f"byte {error.start + 1} ({found!r}) is not UTF-8; save the file as UTF-8")
    except Repeated as repeated:
        return repeated_key(number, repeated)
    except (ValueError, RecursionError) as error:
        return whole_row(number, "invalid_json", f"no valid JSON: {error_text(error)}")


def read_array(content: bytes) -> list[Row | TaskProblem] | None:
    """The elements of a file that is one JSON array, each with the line it begins on.

    None for a file whose first line is a whole array while others follow: that is a file of lines, with a bad row.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return [
            whole_row(line, "encoding", f"byte {error.object[error.start]:#x} is not UTF-8; save the file as UTF-8")
        ]
    if is_lines_of_arrays(text):
        return None
    return list(array_elements(text))


def is_lines_of_arrays(text: str) -> bool:
    first, _, rest = text.strip().partition("\n")
    try:
        parse_json(first)
    except (ValueError, RecursionError):
        return False
    return bool(rest.strip())


def array_elements(text: str) -> Iterator[Row | TaskProblem]:
    position, line, counted = text.index("[") + 1, 1, 0
    expects_element = False
    while True:
        position = skip_blanks(text, position)
        line, counted = line + text.count("\n", counted, position), position
        if text.startswith("]", position) and not expects_element:
            break
        try:
            value, position = DECODER.raw_decode(text, position)
        except Repeated as repeated:
            yield repeated_key(line, repeated)
            return
        except (ValueError, RecursionError) as error:
            yield whole_row(line, "invalid_json", f"no valid JSON: {error_text(error)}")
            return
        yield checked_row(line, value)
        position = skip_blanks(text, position)
        expects_element = text.startswith(",", position)
        if not expects_element and not text.startswith("]", position):
            line += text.count("\n", counted, position)
            yield whole_row(line, "invalid_json", "expected a comma or the end of the array")
            return
        position += expects_element
    if text[position + 1 :].strip():
        yield whole_row(line, "invalid_json", "there is text after the end of the array")


def checked_row(line: int, value: Any) -> Row | TaskProblem:
    if isinstance(value, dict):
        return Row(line=line, fields=value) if is_unicode(value) else whole_row(line, "encoding", HALF_CHARACTER)
    return whole_row(line, "not_object", f"a row is a JSON object, not {type(value).__name__}")


def repeated_ids(rows: Iterable[Row]) -> Iterator[TaskProblem]:
    seen: dict[str, int] = {}
    for row in rows:
        value = row.get("id")
        if value is None or isinstance(value, bool | list | dict):
            continue
        first = seen.setdefault(str(value), row.line)
        if first != row.line:
            yield row.problem("id", "duplicate", f"the id {str(value)[:80]!r} is already used in line {first}")


def whole_row(line: int | None, kind: str, message: str) -> TaskProblem:
    return TaskProblem(line=line, field=None, kind=kind, message=message)


def described(path: Path, problem: TaskProblem) -> str:
    where = [
        str(path),
        *([f"line {problem.line}"] if problem.line else []),
        *([f"field {problem.field}"] if problem.field else []),
    ]
    return f"{', '.join(where)}: {problem.kind.replace('_', ' ')}: {problem.message}"


class Repeated(ValueError):
    """An object gives the key, its only argument, twice."""


def repeated_key(line: int, repeated: Repeated) -> TaskProblem:
    key = repeated.args[0]
    message = f"the key {key[:80]!r} is given twice in one object; keep one of the two values"
    return TaskProblem(line=line, field=key, kind="duplicate", message=message)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise Repeated(key)
        entries[key] = value
    return entries


def is_unicode(value: Any) -> bool:
    """Whether the value can be written as UTF-8: JSON can name half of a surrogate pair, which is no character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=without_repeats)


def parse_json(text: str) -> Any:
    return DECODER.decode(text)


def error_text(error: Exception) -> str:
    """The reason without the decoder's own line number, which counts from the start of the row."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error) or type(error).__name__


def skip_blanks(text: str, start: int) -> int:
    match = BLANKS.match(text, start)
    return match.end() if match else start
