"""Mathematical equality: symmetric, exact, fast, and out of reach of hostile text."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.scoring import math_equal
from agentrl.scoring.math_answer import Unreadable, read_answer
from agentrl.scoring.math_equality import compare_here, compare_mathematics
from agentrl.scoring.pool import Job, WorkerUnavailable, shared_pool

EQUAL = [
    (r"x=1 \text{ or } x=2", "1, 2"), ("x²+1", "x^2+1"), ("½", "0.5"), ("2pi", r"2\pi"), (r"\$5.00", "5 dollars"),
    (r"The answer is \boxed{42}.", "42"), ("x=1, y=2", "y=2, x=1"), ("y=2x+1", "2x+1"), ("x<3", "3>x"),
    ("2x+2y=2", "x+y=1"), (r"(-\infty,2)\cup(2,\infty)", r"\mathbb{R}\setminus\{2\}"), ("5 square meters", "5 m^2"),
    ("[[1,2],[3,4]]", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"), (r"\sin 30^\circ", r"\frac12"), ("1e400", "10^{400}"),
    (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"), (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2"), (r"1\pm\sqrt2",
    r"1-\sqrt2, 1+\sqrt2"),
    (r"\sin(x+y)", r"\sin x\cos y+\cos x\sin y"), (r"e^{i\pi}", "-1"),
    (r"f(x)(x+1)", "xf(x)+f(x)"),
    (r"\sqrt{1-x^2}", r"\sqrt{(1-x)(1+x)}"), (r"12.5\%", r"\frac18"), (r"|x|", r"\sqrt{x^2}"),
]  # fmt: skip
DIFFERENT = [
    ("no", "on"), ("x=5", "y=5"), ("(1,2)", "[1,2]"), ("x<3", r"x\le 3"), ("1011_2", "1011"), ("100!", "100!+1"),
    (r"10^{100}\sqrt2+1", r"10^{100}\sqrt2"), (r"\frac13", "0.3333"), (r"e^{\pi\sqrt{163}}", "262537412640768744"),
    (r"\sqrt{x^2}", "x"), (r"5\text{ cm}^2", r"5\text{ cm}"), ("C", "c"),
    ("f(x)", "g(x)"), (r"\ln(x-10)", r"\ln(x-11)"), (r"\sqrt{1-x^2}", r"\sqrt{1-x}"),
    (r"\alpha", r"\beta"), ("x+y=1", "x+y=2"),
    (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"), ("The answer is 42", "42"),
    (r"\frac{1}{0}", r"\frac{2}{0}"), ("1e5000", "1e5001"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_other_spellings_of_the_same_object_are_equal_both_ways(one: str, other: str) -> None:
    assert math_equal(one, other)
    assert math_equal(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_objects_are_different_both_ways(one: str, other: str) -> None:
    assert not math_equal(one, other)
    assert not math_equal(other, one)


PLAIN = "1 2 0 -3 0.5 x y , ; ( ) [ ] { } = < + - * / ^ ^2 % cm _ ! | & $ : or yes e i ' 1e3 10^{3}"
COMMANDS = (
    r"\{ \} \le \frac{1}{2} \sqrt{2} \pi \infty \text{m} \cup \pm \begin{pmatrix} \end{pmatrix} \\ \boxed{ \circ "
    r"\text{ \left( \right]"
)
PIECES = st.sampled_from([*PLAIN.split(), *COMMANDS.split()])
TEXTS = st.lists(PIECES, min_size=1, max_size=8).map("".join) | st.lists(PIECES, max_size=8).map(" ".join)


@settings(max_examples=400, deadline=None)
@given(TEXTS, TEXTS)
def test_shapes_compare_alike_in_both_directions(one: str, other: str) -> None:
    assert compare_here(one, other) == compare_here(other, one)


@settings(max_examples=400, deadline=None)
@given(TEXTS | st.text(max_size=40))
def test_any_text_equals_itself_unless_it_is_blank(text: str) -> None:
    here = compare_here(text, text)
    assert here is not None
    assert here.equal == bool(text.strip())


@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS)
def test_verdicts_with_algebra_are_symmetric(one: str, other: str) -> None:
    assert math_equal(one, other) == math_equal(other, one)


HOSTILE = [
    "9^{9^{9^{9}}}", "(9^9)^{9^9}", "9!!!!", "2^{10000000}", r"\binom{10^9}{5\cdot10^8}",
    r"\sum_{k=1}^{10^{12}} \sin k",
    r"\int_0^1 x^{x^{x^x}} dx", r"\prod_{k=1}^{10^9} k", "x^{99999}+(x+1)^{9999}",
    r"\frac{\frac{\frac{1}{x}}{x}}{x}" * 60,
    "(x+y+z+1)^{500}", r"\sqrt{" * 30 + "2" + "}" * 30,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_an_expensive_answer_is_not_equal_within_its_time(text: str) -> None:
    started = time.monotonic()
    assert not math_equal(text, r"\sqrt{7}", timeout_seconds=1.0)
    assert time.monotonic() - started < 8


LONG = [
    "(" * 39 + "1," * 1000 + "2" + ")" * 39, "{" * 30 + "x" * 2000 + "}" * 30, "1," * 199 + "1", "1 " * 1400,
    "x=" * 700, "a:" * 900, r"\cup" * 700, "(" * 20_000, "7" * 300_000, "1" * 2900 + r"\text{", "1.5e" * 700,
    "1 000" * 600, r"\begin{pmatrix}" + "&" * 2000 + r"\end{pmatrix}",
    r"\sqrt(" * 39 + "x" * 2000 + ")" * 39, "." * 2900,
    r"^{\circ}" * 370, "{" * 40 + "}" * 40, r"\text{" * 40, "9" * 2000 + "/" + "7" * 900,
]  # fmt: skip


@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_the_shape_of_long_text_is_settled_fast(text: str) -> None:
    started = time.process_time()
    compare_here(text, r"\frac{x}{2}+1")
    assert time.process_time() - started < 1


def test_text_out_of_bounds_is_refused_and_only_equal_to_itself() -> None:
    long = r"\frac{x}{2}" * 1000
    with pytest.raises(Unreadable, match="11000 characters"):
        read_answer(long)
    assert math_equal(long, long)
    assert "characters" in compare_mathematics(long, "1").undecided


def test_a_comparison_that_was_given_up_says_so() -> None:
    given_up = compare_mathematics(r"\sum_{k=1}^{10^{12}} \sin k", r"\sqrt{7}", timeout_seconds=0.5)
    assert not given_up.equal
    assert given_up.undecided


def test_a_thousand_plain_integers_need_no_worker_and_no_time() -> None:
    started = time.process_time()
    assert [math_equal(str(i), f"{i}.0") for i in range(1000)] == [True] * 1000
    assert time.process_time() - started < 0.5


def test_many_threads_may_compare_at_once() -> None:
    verdicts: dict[int, bool] = {}

    def compare(i: int) -> None:
        verdicts[i] = math_equal(rf"\sqrt{{{i * i * 2}}}", rf"{i}\sqrt{{2}}")

    threads = [threading.Thread(target=compare, args=(i,)) for i in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == dict.fromkeys(range(1, 13), True)


def in_daemon(queue: "multiprocessing.Queue[list[bool]]") -> None:
    queue.put([math_equal(r"2\sqrt{3}", r"\sqrt{12}"), math_equal("9!!!!", r"\sqrt{7}"), math_equal("7", "7.0")])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_daemon_process_gets_the_same_verdicts(method: str) -> None:
    assert math_equal(r"2\sqrt{3}", r"\sqrt{12}")
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=in_daemon, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=60) == [True, False, True]
    process.join(timeout=30)
    assert process.exitcode == 0


def test_workers_end_with_the_process_that_started_them() -> None:
    code = (
        "import os; from agentrl.scoring import math_equal; math_equal(r'2\\sqrt{3}', r'\\sqrt{12}');"
        "from agentrl.scoring.pool import shared_pool; print(shared_pool('math')._idle[0].pid, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    worker = int(done.stdout)
    for _ in range(150):
        if not os.path.exists(f"/proc/{worker}"):
            return
        time.sleep(0.02)
    pytest.fail(f"worker {worker} outlived its parent")


def test_a_process_ends_normally_while_it_has_idle_workers() -> None:
    code = r"from agentrl.scoring import math_equal; assert math_equal(r'2\sqrt{3}', r'\sqrt{12}')"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_scoring_imports_no_algebra_until_it_is_needed() -> None:
    code = (
        "import sys; import agentrl.scoring as s; s.math_equal('1/2', '0.5');"
        "heavy = {'sympy', 'math_verify', 'latex2sympy2_extended', 'torch', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_module_that_no_worker_can_import_is_an_error_not_a_verdict() -> None:
    with pytest.raises(WorkerUnavailable, match="no_such_module"):
        shared_pool("math").run(Job(targets=("no_such_module:f",), arguments=(), deadline_seconds=1.0))
