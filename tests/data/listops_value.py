"""The value of a ListOps expression, by its text alone."""

from __future__ import annotations

from regard.data.generated.algorithmic_tasks import OPERATIONS


def evaluate(text: str) -> int:
    stack: list[tuple[str, list[int]]] = []  # open lists: operation, values so far
    for token in text.split():
        if token in OPERATIONS:
            stack.append((token, []))
            continue
        if token == "]":
            operation, values = stack.pop()
            value = OPERATIONS[operation](values)
        else:
            value = int(token)
        if not stack:
            return value
        stack[-1][1].append(value)
    raise ValueError(f"brackets are open: {text}")
