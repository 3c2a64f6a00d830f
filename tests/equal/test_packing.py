"""Packed = unpacked: several texts in one row have the loss and the gradients that they have in rows of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard import spec
from regard.builder import build
from regard.core.context import Context
from regard.core.masks.mask import DocumentMask
from regard.data.padding import IGNORED
from regard.families.encoder_decoders.transformer import transformer
from regard.system.errors import ModelError
from regard.training.objectives.losses import linear_cross_entropy

LAYER = spec.Block(
    spec.Attention(4, 6, 5, groups=2), spec.FeedForward(20), residual=spec.PreNorm(), dropout=0.0
)
EVEN = replace(LAYER, attention=spec.Attention(4, 6, 6))
ROWS = ((5, 1, 7), (4, 6), (13,))  # lengths of the texts of each row
SOURCES = ((3, 6, 2), (8, 1), (9,))


def decoder(
    block: spec.Block = LAYER, position: Any = None, at_input: Any = None, **changes: Any
) -> spec.Decoder:
    options: dict[str, Any] = {"pattern": spec.CausalMask()} | changes
    return spec.Decoder(
        24,
        spec.Tokens(19, at_input, dropout=0.0),
        spec.Stack.of(2, block, position=position, **options),
    )


DECODERS = {
    "sinusoids": decoder(at_input=spec.Sinusoidal()),
    "learned, shorter than a row": decoder(at_input=spec.LearnedPosition(13, offset=2)),
    "concatenated": decoder(at_input=spec.ConcatenatedPosition(6)),
    "rope": decoder(position=spec.Rope()),
    "alibi": decoder(position=spec.Alibi()),
    "buckets": decoder(position=spec.T5Bias(8, 9)),
    "relative keys": decoder(position=spec.RelativeKeys(3)),
    "relative sinusoids": decoder(EVEN, spec.RelativeSinusoids()),
    "window": decoder(at_input=spec.Sinusoidal(), pattern=spec.CausalMask(3)),
    "told the place": decoder(scheme=spec.Universal()),
    "reversible": decoder(scheme=spec.Reversible(), at_input=spec.Sinusoidal()),
}  # fmt: skip
SEQUENCES = {
    "the paper": transformer(19, 19, d_model=24, d_ff=40, heads=3, layers=2, dropout=0.0),
    "learned": transformer(19, 19, d_model=24, d_ff=40, heads=3, layers=2, dropout=0.0, position=spec.LearnedPosition(13)),
    "buckets": transformer(
        19, 19, d_model=24, d_ff=40, heads=3, layers=2, dropout=0.0, position=None, relative=spec.T5Bias(8, 9)
    ),
    "matching": replace(transformer(19, 19, d_model=24, d_ff=40, heads=3, layers=2, dropout=0.0), looks="matching"),
}  # fmt: skip


def texts(lengths: tuple[tuple[int, ...], ...]) -> list[list[Tensor]]:
    return [[torch.randint(19, (length,)) for length in row] for row in lengths]


def packed(rows: list[list[Tensor]], fill: int = 0) -> tuple[Tensor, DocumentMask]:
    """The texts of each row one after the other, and behind them padding, which is a document of its own."""
    tokens = pad_sequence([torch.cat(row) for row in rows], batch_first=True, padding_value=fill)
    of = [torch.cat([torch.full((len(text),), i) for i, text in enumerate(row)]) for row in rows]
    return tokens, DocumentMask(
        pad_sequence(of, batch_first=True, padding_value=max(map(len, rows)))
    )


def apart(rows: list[list[Tensor]], fill: int = 0) -> Tensor:
    return pad_sequence(
        [text for row in rows for text in row], batch_first=True, padding_value=fill
    )


def learnt(
    model: Any, output: tuple[Tensor, dict[str, Tensor]], labels: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The loss of one update, and its gradients."""
    hidden, _ = output
    loss, _ = linear_cross_entropy(model.head, hidden, labels, 0.1)
    return loss.detach(), list(
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    )


def same(one: tuple[Tensor, list[Tensor]], other: tuple[Tensor, list[Tensor]]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=1e-6, atol=0)
    for a, b in zip(one[1], other[1], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DECODERS)
def test_a_language_model(name: str) -> None:
    model = build(DECODERS[name]).double().train()
    tokens, labels = texts(ROWS), texts(ROWS)
    together, documents = packed(tokens)
    wanted = learnt(model, model(apart(tokens)), apart(labels, IGNORED))
    same(
        learnt(
            model, model(together, context=Context(documents=documents)), packed(labels, IGNORED)[0]
        ),
        wanted,
    )
    fully_masked = learnt(model, model(together), packed(labels, IGNORED)[0])
    assert not torch.allclose(fully_masked[0], wanted[0], rtol=1e-4), (
        "without documents it is another loss"
    )


@pytest.mark.parametrize("name", SEQUENCES)
def test_an_encoder_decoder(name: str) -> None:
    """Each target sees its own source only, wherever both stand in their rows."""
    model = build(SEQUENCES[name]).double().train()
    sources, targets, labels = texts(SOURCES), texts(ROWS), texts(ROWS)
    lengths = torch.tensor([length for row in SOURCES for length in row])
    padding_mask = torch.arange(int(lengths.max())) < lengths[:, None]
    wanted = learnt(
        model, model(apart(sources), apart(targets), padding_mask), apart(labels, IGNORED)
    )
    (source, theirs), (target, ours) = packed(sources), packed(targets)
    answers = packed(labels, IGNORED)[0]
    same(
        learnt(
            model,
            model(source, target, context=Context(documents=theirs, target_documents=ours)),
            answers,
        ),
        wanted,
    )
    filled = torch.arange(source.shape[1]) < torch.tensor([[sum(row)] for row in SOURCES])
    same(
        learnt(
            model,
            model(source, target, filled, context=Context(documents=theirs, target_documents=ours)),
            answers,
        ),
        wanted,
    )
    crossed = replace_documents(ours)
    other = learnt(
        model,
        model(source, target, context=Context(documents=theirs, target_documents=crossed)),
        answers,
    )
    assert not torch.allclose(other[0], wanted[0], rtol=1e-4), "another source is another loss"


def replace_documents(mask: DocumentMask) -> DocumentMask:
    """The first two texts of a row, each with the other's number."""
    ids = mask.document_ids
    return DocumentMask(torch.where(ids < 2, 1 - ids, ids))


def test_an_encoder() -> None:
    block = replace(LAYER, attention=spec.Attention(4, 6, 5))
    model = build(
        spec.Encoder(
            24,
            spec.Tokens(19, spec.LearnedPosition(13), dropout=0.0),
            spec.Stack.of(2, block),
            heads=(spec.LMHead(),),
        )
    ).double()
    tokens = texts(ROWS)
    together, documents = packed(tokens)
    hidden, _ = model(together, context=Context(documents=documents))
    for row, alone in zip(hidden, tokens, strict=True):
        place = 0
        for text in alone:
            torch.testing.assert_close(
                row[place : place + len(text)], model(text[None])[0][0], rtol=1e-6, atol=1e-8
            )
            place += len(text)


def test_places_begin_anew() -> None:
    of = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
    assert DocumentMask(of).positions.tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    "pattern", [spec.BlockLocalMask(4), spec.GlobalMask(1), spec.RandomBlockMask(4, of="before")]
)
def test_what_counts_from_the_beginning_of_a_row_is_refused(pattern: spec.MaskPattern) -> None:
    model = build(decoder(at_input=spec.Sinusoidal(), pattern=spec.And(spec.CausalMask(), pattern)))
    together, documents = packed(texts(ROWS))
    with pytest.raises(ModelError, match="do not support packed texts"):
        model(together, context=Context(documents=documents))


def test_parts_that_carry_a_state_are_refused() -> None:
    sides = spec.Recurrent("gru"), spec.Recurrent("gru")
    tokens = spec.Tokens(19, dropout=0.0)
    model = build(spec.SequenceToSequence(24, tokens, tokens, *sides))
    (source, theirs), (target, ours) = packed(texts(SOURCES)), packed(texts(ROWS))
    with pytest.raises(ModelError, match="do not support packed texts"):
        model(source, target, context=Context(documents=theirs, target_documents=ours))
