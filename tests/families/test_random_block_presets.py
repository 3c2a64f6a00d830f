"""BigBird's random blocks: an encoder's come from the whole text, a decoder's from its past."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.builder.masks import build_mask_pattern
from regard.core.masks.mask import Call
from regard.core.masks.sparse_masks import BlockTableMask
from regard.families.attention_options import parse_attention
from regard.families.presets import preset


def random_part(pattern: spec.MaskPattern) -> spec.RandomBlockMask:
    match pattern:
        case spec.RandomBlockMask():
            return pattern
        case spec.And(_, second) | spec.Or(_, second):
            return random_part(second)
        case _:
            raise AssertionError(pattern)


def table(pattern: spec.MaskPattern, length: int) -> torch.Tensor:
    drawn: Any = build_mask_pattern(random_part(pattern)).bind(Call(length))
    assert isinstance(drawn, BlockTableMask)
    return drawn.host_table


def stack(name: str, attention: str = "bigbird:4:2") -> spec.Stack:
    model: Any = preset(name, 50, 64, attention=attention)
    return model.encoder if isinstance(model, spec.EncoderDecoder) else model.stack


@pytest.mark.parametrize("name", ["bert:tiny", "transformer:tiny", "t5:tiny", "roberta:tiny"])
def test_an_encoder_draws_from_all_blocks(name: str) -> None:
    blocks = table(stack(name).block.pattern, 64)
    rows = torch.arange(len(blocks))[:, None]
    assert bool((blocks > rows).any())
    assert bool((blocks < rows).any())
    assert int(blocks.min()) >= 0  # nobody goes without


@pytest.mark.parametrize("name", ["gpt2:tiny", "llama:tiny"])
def test_a_decoder_draws_from_earlier_blocks(name: str) -> None:
    blocks = table(stack(name).block.pattern, 64)
    assert bool((blocks < torch.arange(len(blocks))[:, None]).all())


def test_padding_changes_nothing() -> None:
    model: Any = build(preset("bert:tiny", 50, 64, attention="bigbird:4")).eval().double()
    tokens = torch.randint(0, 50, (1, 22))
    padded = torch.cat([tokens, torch.zeros(1, 20, dtype=torch.long)], dim=1)
    alone = model(tokens)[0]
    in_a_batch = model(padded, torch.arange(42)[None] < 22)[0][:, :22]
    assert torch.allclose(alone, in_a_batch, atol=1e-12)


def test_files_of_before_mean_what_they_meant() -> None:
    # What was written for an encoder, and a spec without the length.
    for stored, expected in (
        ({"kind": "RandomBlockMask", "size": 4, "count": 1, "seed": 0, "of": "before"}, "before"),
        ({"kind": "RandomBlockMask", "size": 4}, "all"),
    ):
        pattern: Any = spec.from_dict(stored)
        assert (pattern.of, pattern.length) == (expected, None)
    # Without a length, the draws are the ones of earlier versions: from the blocks of the input.
    blocks = table(spec.RandomBlockMask(4, 1, seed=0), 20)
    assert blocks.flatten().tolist() == [2, 3, 4, 3, 1]
    assert random_part(parse_attention("bigbird")[1]).length is None
