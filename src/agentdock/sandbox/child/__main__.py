"""Run as a folder in a fresh interpreter: take the limits on, then run ``main.py`` of the working folder."""

import ast
import json
import os
import sys
import traceback
from types import CodeType, ModuleType, TracebackType

HERE = os.path.dirname(os.path.abspath(__file__))


def show_own_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback that starts in ``main.py``."""
    first = trace
    while trace is not None and trace.tb_frame.f_code.co_filename != "main.py":
        trace = trace.tb_next
    trace = trace or (None if isinstance(error, SyntaxError) else first)
    traceback.print_exception(kind, error, trace)


def parts(source: str, path: str) -> tuple[CodeType, CodeType | None]:
    """The program, and its last expression apart, whose value is shown."""
    tree = ast.parse(source, path)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    program = compile(tree, path, "exec")
    return program, compile(ast.Expression(last.value), path, "eval") if isinstance(last, ast.Expr) else None


def run(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        source = file.read()
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path]
    sys.excepthook = show_own_frames
    program, last = parts(source, path)
    exec(program, main.__dict__)
    if last is not None:
        value = eval(last, main.__dict__)
        if value is not None:
            print(repr(value))
    save_figures()


def save_figures() -> None:
    """Open matplotlib figures become files, as a notebook would show them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        for number in pyplot.get_fignums():
            pyplot.figure(number).savefig(f"figure-{number}.png")


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    from confine import confine

    held = confine(options)
    if options["report"]:
        print(json.dumps(held), flush=True)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    run("main.py")
