"""Whether two answers are the same object, as wholes: symmetric, and three-valued where algebra has to decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from agentrl.scoring.math_answer import Answer

Leaf = Callable[[Answer, Answer], bool | None]
"""Equality of two leaves of which at least one is an expression; None: not decided here."""


def same(left: Answer, right: Answer, leaf: Leaf) -> bool | None:
    """Whether both are the same object; None when a leaf was not decided and the rest agrees. Symmetric."""
    if "assigned" in (left.kind, right.kind):
        return same_assigned(left, right, leaf)
    if "quantity" in (left.kind, right.kind):
        return same_quantity(left, right, leaf)
    if "list" in (left.kind, right.kind):
        return same_list(left, right, leaf)
    if left.kind in ("number", "expression", "text") and right.kind in ("number", "expression", "text"):
        return same_leaf(left, right, leaf)
    if left.kind != right.kind:
        return False
    if left.kind == "relation":
        return same_relation(left, right, leaf)
    if left.label != right.label:
        return False
    if left.kind in ("set", "union"):
        return same_members(left.items, right.items, leaf)
    return same_in_order(left.items, right.items, leaf)


def same_leaf(left: Answer, right: Answer, leaf: Leaf) -> bool | None:
    if left.kind == right.kind == "number":
        return left.number == right.number
    if "text" in (left.kind, right.kind):
        return left.kind == right.kind and left.text == right.text and bool(left.text)
    if "".join(left.text.split()) == "".join(right.text.split()):
        return True
    return leaf(left, right)


def same_assigned(left: Answer, right: Answer, leaf: Leaf) -> bool | None:
    """``x = 5`` is 5, but not ``y = 5``; beside another equation it is one itself."""
    if left.kind == right.kind and left.label == right.label:
        return same(left.items[0], right.items[0], leaf)
    if "relation" in (left.kind, right.kind) or left.kind == right.kind:
        equations = [as_equation(side) for side in (left, right)]
        return leaf(*equations) if all(side.label == "=" for side in equations) else False
    named, other = (left, right) if left.kind == "assigned" else (right, left)
    return same(named.items[0], other, leaf)


def as_equation(side: Answer) -> Answer:
    if side.kind != "assigned" or not side.label.endswith("=") or side.items[0].kind not in ("number", "expression"):
        return side
    name = Answer("expression", text=side.label.removesuffix("="))
    return Answer("relation", (name, *side.items), label="=")


def same_quantity(left: Answer, right: Answer, leaf: Leaf) -> bool | None:
    """Units must agree where both sides have one."""
    if left.kind == right.kind and left.label != right.label:
        return False
    bare = [side.items[0] if side.kind == "quantity" else side for side in (left, right)]
    return same(bare[0], bare[1], leaf)


def same_list(left: Answer, right: Answer, leaf: Leaf) -> bool | None:
    """A list without brackets takes the kind of the other side; two of them are solutions in any order."""
    if left.kind == right.kind:
        return same_bag(left.items, right.items, leaf)
    if "set" in (left.kind, right.kind):
        return same_members(left.items, right.items, leaf)
    other = right if left.kind == "list" else left
    if other.kind == "sequence" and other.label in ("()", "[]"):
        return same_in_order(left.items, right.items, leaf)
    return False


def same_relation(left: Answer, right: Answer, leaf: Leaf) -> bool | None:
    if left.label != right.label or len(left.items) != len(right.items):
        return False
    verdict = same_in_order(left.items, right.items, leaf)
    if left.label not in ("=", r"\ne") or verdict is True:
        return verdict
    turned = same_in_order(left.items, right.items[::-1], leaf)
    if turned is True:
        return True
    return leaf(left, right) if left.label == "=" else either(verdict, turned)


def same_in_order(left: Sequence[Answer], right: Sequence[Answer], leaf: Leaf) -> bool | None:
    if len(left) != len(right):
        return False
    return every(same(a, b, leaf) for a, b in zip(left, right, strict=True))


def same_members(left: Sequence[Answer], right: Sequence[Answer], leaf: Leaf) -> bool | None:
    """Each member has its like on the other side, both ways."""
    ways = ((left, right), (right, left))
    return every(some(same(a, b, leaf) for b in others) for members, others in ways for a in members)


def same_bag(left: Sequence[Answer], right: Sequence[Answer], leaf: Leaf) -> bool | None:
    """Each member is there equally often on both sides."""
    if len(left) != len(right):
        return False
    return every(same_count(member, left, right, leaf) for member in (*left, *right))


def same_count(member: Answer, left: Sequence[Answer], right: Sequence[Answer], leaf: Leaf) -> bool | None:
    verdicts = [[same(member, other, leaf) for other in side] for side in (left, right)]
    sure = [side.count(True) for side in verdicts]
    possible = [len(side) - side.count(False) for side in verdicts]
    if sure[0] > possible[1] or sure[1] > possible[0]:
        return False
    return True if sure == possible and sure[0] == sure[1] else None


def every(verdicts: Iterable[bool | None]) -> bool | None:
    undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        undecided |= verdict is None
    return None if undecided else True


def some(verdicts: Iterable[bool | None]) -> bool | None:
    undecided = False
    for verdict in verdicts:
        if verdict is True:
            return True
        undecided |= verdict is None
    return None if undecided else False


def either(one: bool | None, other: bool | None) -> bool | None:
    return some((one, other))
