"""Sizes that belong to a whole model: the dimensions in its shapes."""

from __future__ import annotations

from regard import spec


def dimension_letters(model: spec.Model) -> dict[str, str]:
    """The letters in the page's shapes (`shapes.py`), with what they stand for in this model."""
    letters = {"B": "batch rows", **_lengths(model)}
    letters["D"] = ", ".join(
        f"{width:,} ({tower})" if tower else f"{width:,}" for tower, width in model.widths.items()
    )
    if len(model.widths) == 1 and model.stacks:
        # The decoder's, where there are two: they have the same sizes in all published models.
        letters |= _stack_letters(list(model.stacks.values())[-1])
    if model.vocab_size is not None:
        letters["V"] = f"{model.vocab_size:,} tokens"
    return letters


def _lengths(model: spec.Model) -> dict[str, str]:
    if model.is_encoder_decoder:
        return {"T": "target positions", "S": "source positions"}
    if model.main_input_name == "story":  # a memory network attends to sentences, not to tokens
        return {"N": "sentences"}
    return {"T": "positions"}


def _stack_letters(stack: spec.Stack) -> dict[str, str]:
    attention = stack.block.attention
    letters = {"H": f"{attention.heads} heads"}
    if attention.key_heads != attention.heads:
        letters["G"] = f"{attention.key_heads} key heads"
    letters["K"] = str(attention.d_k)
    letters["F"] = f"{stack.block.feedforward.d_ff:,}"
    return letters
