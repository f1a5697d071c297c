"""``python -m agentdock.servers.calculator``: the tool ``calculator`` evaluates one arithmetic expression."""

from __future__ import annotations

from typing import Any

from agentdock.servers.arithmetic import ArithmeticProblem, evaluate
from agentdock.servers.serve import Answer, ServedTool, serve


async def calculate(arguments: dict[str, Any]) -> Answer:
    try:
        return Answer(text=evaluate(arguments["expression"]))
    except ArithmeticProblem as problem:
        return Answer(text=str(problem), is_error=True)


TOOL = ServedTool(
    name="calculator",
    description="Evaluate an arithmetic expression with + - * / // % ** and parentheses. Returns the number.",
    parameters={
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "for example (3 + 4) * 330"}},
        "required": ["expression"],
        "additionalProperties": False,
    },
    run=calculate,
    read_only=True,
)

if __name__ == "__main__":
    serve(TOOL)
