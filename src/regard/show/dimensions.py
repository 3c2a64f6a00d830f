"""Sizes that belong to a whole model: the dimensions in its shapes, and its KV cache."""

from __future__ import annotations

from regard import spec


def kv_cache_size(model: spec.Model) -> int | None:
    """How many numbers the KV cache holds for each token of the decoder's text.

    None for a model that does not decode; 0 where what decoding remembers does not grow with
    the text, as in recurrent models and compressive memories.
    """
    if isinstance(model, spec.SequenceToSequence | spec.RecurrentDecoder):
        return 0
    if isinstance(model, spec.Decoder):
        stack = model.stack
    elif isinstance(model, spec.EncoderDecoder):
        stack = model.decoder
    else:
        return None
    if stack.compressed is not None:  # a compressive memory has a fixed size
        return 0
    total = 0
    for block in stack.blocks:
        attention = block.attention
        if isinstance(attention.mixer, spec.ChunkedAttention | spec.LshAttention):
            return 0  # there is no cache: each step reads the tokens again
        # One key and one value for each key head; grouped queries share them.
        total += attention.key_heads * (attention.d_k + attention.d_v)
    return total


def dimension_letters(model: spec.Model) -> dict[str, str]:
    """The letters in the page's shapes (`shapes.py`), with what they stand for in this model."""
    letters = {"B": "batch rows", "T": "positions"}
    match model:
        case spec.DualEncoder(text, image):
            widths = f"{text.d_model:,} (text), {image.d_model:,} (image)"
            return letters | {"D": widths}
        case spec.MemoryNetwork():
            letters = {"B": "batch rows", "N": "sentences", "D": f"{model.d_model:,}"}
            return letters | _vocabulary(model.vocabulary)
        case spec.SequenceToSequence():
            letters |= _two_lengths() | {"D": f"{model.d_model:,}"}
            return letters | _vocabulary(model.target.vocabulary)
        case spec.RecurrentDecoder():
            return letters | {"D": f"{model.d_model:,}"} | _vocabulary(model.tokens.vocabulary)
        case spec.EncoderDecoder():
            letters |= _two_lengths() | _stack_letters(model.decoder, model.d_model)
            return letters | _vocabulary(model.target.vocabulary)
        case spec.Decoder():
            letters |= _stack_letters(model.stack, model.d_model)
            return letters | _vocabulary(model.tokens.vocabulary)
        case spec.Encoder():
            letters |= _stack_letters(model.stack, model.d_model)
            if isinstance(model.input, spec.Tokens):
                letters |= _vocabulary(model.input.vocabulary)
            return letters


def _two_lengths() -> dict[str, str]:
    return {"T": "target positions", "S": "source positions"}


def _vocabulary(size: int) -> dict[str, str]:
    return {"V": f"{size:,} tokens"}


def _stack_letters(stack: spec.Stack, d_model: int) -> dict[str, str]:
    attention = stack.block.attention
    letters = {"D": f"{d_model:,}", "H": f"{attention.heads} heads"}
    if attention.key_heads != attention.heads:
        letters["G"] = f"{attention.key_heads} key heads"
    letters["K"] = str(attention.d_k)
    letters["F"] = f"{stack.block.feedforward.d_ff:,}"
    return letters
