"""A translator trains and decodes with every kind of attention and position that a recipe can name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.mixers import linear_attention
from regard.data.generated import builtin
from regard.families import folder as folders
from regard.families.attention_options import MASK_PATTERNS, MIXERS, parse_attention
from regard.families.encoder_decoders.transformer import transformer
from regard.system.errors import ModelError, SettingError
from regard.training.model_spec import describe
from regard.training.recipe import loading
from regard.training.run import resume, run
from regard.training.run_folder import begin
from regard.wirings.encoder_decoder import EncoderDecoder

TINY: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 2, "layers": 1, "dropout": 0.1, "batch_tokens": 256, "steps": 3,
    "warmup_steps": 2, "save_every": 9, "validate_every": 9, "samples": 0, "tokenizer": "words", "vocabulary": 300, "beam": 2,
    "threads": 1, "max_length": 60,
}  # fmt: skip
BOTH = [
    "softmax", "window:3", "dilated:2:2", "strided:3", "blocks:4", "bigbird:3", "global:3", "longformer:3", "topk:3", "linear", "performer",
    "performer:20", "additive",
]  # fmt: skip
ENCODER = ["linformer:5", "reformer:4:8"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("text")
    pairs = list(itertools.islice(builtin.sentences("train"), 60))
    files: dict[str, str] = {}
    for side in ("source", "target"):
        path = folder / f"train.{side}"
        path.write_text("".join(getattr(pair, side) + "\n" for pair in pairs))
        short = folder / f"valid.{side}"
        short.write_text("".join(getattr(pair, side) + "\n" for pair in pairs[:4]))
        files |= {side: str(path), f"valid_{side}": str(short), f"test_{side}": str(short)}
    return files


def trained(text: dict[str, str], out: Path, **changes: Any) -> EncoderDecoder:
    """The model of a run folder, as others open it."""
    recipe = loading.load(None, TINY | text | changes)
    run(begin(recipe, out, "test"), recipe, "test", quiet=True)
    model, opened = folders.open_model(out)
    assert isinstance(model, EncoderDecoder)
    assert trainable(model) == parameter_count(opened.spec)
    return model


CASES = [
    *({"attention": word} for word in BOTH),
    *({"attention": word, "decoder_attention": "window:2"} for word in ENCODER),
    *(
        {"position": word}
        for word in ("none", "concatenated", "relative", "buckets", "alibi", "rope")
    ),
    {"attention": "window:4", "position": "buckets"},
    {"attention": "performer", "position": "rope"},
]


@pytest.mark.parametrize("changes", CASES, ids=lambda c: "-".join(c.values()))
def test_trains_and_decodes_cached_as_uncached(
    changes: dict[str, str], text: dict[str, str], tmp_path: Path
) -> None:
    model = trained(text, tmp_path / "run", **changes).double()
    source, target = torch.randint(4, 60, (3, 13)), torch.randint(4, 60, (3, 15))
    padding_mask = torch.arange(13) < torch.tensor([13, 6, 1])[:, None]
    whole = model.head(model(source, target, padding_mask)[0])
    state = model.start(model.encode(source, padding_mask), capacity=15)
    pieces = [model.step(piece, state) for piece in target.split([1, 1, 9, 4], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)
    translator: Any = regard.load(tmp_path / "run")
    assert translator.translate("the dog sleeps") is not None


def test_random_features_are_redrawn_and_a_resumed_run_is_the_same(
    text: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    crash_at: Callable[[int], Any],
) -> None:
    monkeypatch.setitem(
        MIXERS, "performer", lambda: spec.LinearAttention(spec.FavorFeatures(8, redraw=2))
    )
    seen: list[int] = []
    plain = linear_attention.FavorFeatures.redraw
    monkeypatch.setattr(
        linear_attention.FavorFeatures,
        "redraw",
        lambda part, draw: (seen.append(draw), plain(part, draw))[1],
    )
    whole = trained(text, tmp_path / "whole", attention="performer", steps=6, save_every=2)
    assert seen[::2] == [0, 1, 1, 2, 2, 3]  # of the first of the two sides
    recipe = loading.load(
        None, TINY | text | {"attention": "performer", "steps": 6, "save_every": 2}
    )
    place = begin(recipe, tmp_path / "parts", "test")
    with pytest.raises(KeyboardInterrupt):
        run(place, recipe, "test", quiet=True, on_step=crash_at(4))
    resume(tmp_path / "parts", quiet=True)
    model, _ = folders.open_model(tmp_path / "parts")
    for one, other in zip(whole.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_every_word_is_tried() -> None:
    tried = {word.partition(":")[0] for word in BOTH + ENCODER}
    # Neighbours are those of a graph, not of a text.
    assert tried | {"neighbours"} == MASK_PATTERNS.keys() | MIXERS.keys()


def test_what_does_not_exist_is_refused() -> None:
    for word, message in (
        ("windw:3", "did you mean 'window'"), ("window", "numbers"), ("window:x", "numbers"), ("linear:2", "numbers"),
        ("dilated:3", "numbers"), ("topk", "numbers"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=message):
            parse_attention(word)
        with pytest.raises(SettingError, match=message):
            loading.load(None, {"decoder_attention": word})
    with pytest.raises(ModelError, match="at least 1"):
        parse_attention("window:0")
    for changes, message in (
        ({"attention": "linformer:8"}, "no causal form"),
        ({"attention": "reformer:8"}, "LSH attention cannot be cached"),
        ({"attention": "linear", "position": "alibi"}, "no scores"),
    ):
        with pytest.raises(SettingError, match=message):
            describe(loading.load(None, {"preset": "tiny", **changes}), 50, 50)
    with pytest.raises(SettingError, match="does not support attention_dropout"):
        describe(
            loading.load(
                None, {"preset": "tiny", "attention": "performer", "attention_dropout": 0.1}
            ),
            50,
            50,
        )


def test_a_recipe_says_what_the_spec_then_is() -> None:
    recipe = loading.load(
        None, {"preset": "tiny", "attention": "linformer:8", "decoder_attention": "window:5"}
    )
    made = describe(recipe, 50, 50)
    assert made.encoder.block.attention.mixer == spec.Linformer(256, 8)
    assert made.decoder.block.pattern == spec.And(spec.CausalMask(), spec.WindowMask(5))
    assert made.decoder.block.cross == transformer(50, 50, d_model=128, heads=4).decoder.block.cross
    build(made)
