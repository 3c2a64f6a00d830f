"""Changes of presets hold for every wiring: each word makes the part that it names, or says why it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build
from regard.families.encoder_decoders import transformer
from regard.families.encoders import bert
from regard.families.preset_changes import POSITIONS, RESIDUALS, parse_position
from regard.families.presets import PRESET_FAMILIES, preset
from regard.system.errors import DataError, SettingError
from regard.training.recipe.schema import KEYS

WIRINGS = ("transformer:tiny", "t5:tiny", "bart:tiny", "bert:tiny", "roberta:tiny", "gpt2:tiny", "llama:tiny")  # fmt: skip
TEXT_KINDS = ("encoder", "decoder", "encoder-decoder")


def stacks(model: Any) -> list[spec.Stack]:
    if isinstance(model, spec.EncoderDecoder):
        return [model.encoder, model.decoder]
    return [model.stack]


def front_ends(model: Any) -> list[Any]:
    if isinstance(model, spec.EncoderDecoder):
        return [model.source, model.target]
    return [model.input if isinstance(model, spec.Encoder) else model.tokens]


def runs(model: spec.Model) -> bool:
    """Whether a forward pass gives finite numbers."""
    module: Any = build(model).eval()
    tokens = torch.randint(0, 50, (2, 12))
    inputs = (tokens, tokens) if isinstance(model, spec.EncoderDecoder) else (tokens,)
    with torch.no_grad():
        return bool(torch.isfinite(module(*inputs)[0]).all())


@pytest.mark.parametrize("word", POSITIONS)
@pytest.mark.parametrize("name", WIRINGS)
def test_positions_of_every_wiring(name: str, word: str) -> None:
    model = preset(name, 50, 32, position=word)
    expected = parse_position(word, 32)
    for part in front_ends(model):
        assert type(part.position) is type(expected.at_input)
        if isinstance(part.position, spec.Sinusoidal):
            assert part.position == expected.at_input
        if isinstance(part.position, spec.LearnedPosition):
            assert part.position.length == 32
    assert [stack.block.position for stack in stacks(model)] == [expected.inside] * len(
        stacks(model)
    )
    assert runs(model)


@pytest.mark.parametrize("name", ["gpt2:tiny", "bert:tiny", "bart:tiny"])
def test_what_is_advised_for_longer_texts_helps(name: str) -> None:
    with pytest.raises(DataError) as error:
        runs(preset(name, 50, 8))
    # The settings that the repair names exist, for all wirings.
    for key in ("position", "max_length", "context"):
        assert key in error.value.repair
        assert key in KEYS
    assert runs(preset(name, 50, 8, position="sinusoidal"))
    assert runs(preset(name, 50, 12))


def test_other_positions_replace_those_of_each_step() -> None:
    model = preset("universal:tiny", 50, 32, position="rope")
    assert [stack.scheme for stack in stacks(model)] == [spec.Universal(timing=False)] * 2
    assert runs(model)


@pytest.mark.parametrize("word", RESIDUALS)
@pytest.mark.parametrize("name", WIRINGS)
def test_residuals_of_every_wiring(name: str, word: str) -> None:
    if word == "parallel" and PRESET_FAMILIES[name.partition(":")[0]].kind == "encoder-decoder":
        with pytest.raises(SettingError, match="cannot have cross-attention"):
            preset(name, 50, 32, residual=word)
        return
    if word == "reversible" and name.startswith("t5"):
        with pytest.raises(SettingError, match="recomputes its sublayers"):
            preset(name, 50, 32, residual=word)
        return
    model = preset(name, 50, 32, residual=word)
    for stack in stacks(model):
        assert type(stack.block.residual) is type(RESIDUALS[word])
        # A norm comes last where the stream of residuals is not normalized, if there is one.
        assert (stack.final is None) == (word in ("post", "none"))
    assert runs(model)


@pytest.mark.parametrize("word", ["all", "target", "none"])
@pytest.mark.parametrize("name", WIRINGS)
def test_shared_matrices_of_every_wiring(name: str, word: str) -> None:
    model: Any = preset(name, 50, 32, tie_embeddings=word)
    if isinstance(model, spec.EncoderDecoder):
        assert model.share == word
    else:
        assert model.tied == (word != "none")
    assert runs(model)


@pytest.mark.parametrize("name", WIRINGS)
def test_attention_of_every_wiring(name: str) -> None:
    model = preset(name, 50, 32, attention="window:3", position="rope")
    for stack in stacks(model):
        causal = spec.is_causal(stack.block.pattern)
        window = spec.WindowMask(3)
        assert stack.block.pattern == (spec.And(spec.CausalMask(), window) if causal else window)
    assert runs(model)


@pytest.mark.parametrize(
    "family", [name for name, family in PRESET_FAMILIES.items() if family.kind in TEXT_KINDS]
)
def test_sizes_and_dropout_of_every_family(family: str) -> None:
    changes: dict[str, Any] = {"d_model": 64, "layers": 3, "dropout": 0.25}
    if family.startswith("clip"):  # `layers` are the image tower's
        changes = {"text_layers": 3, "dropout": 0.25}
    model: Any = preset(f"{family}:tiny", 50, 32, **changes)
    if isinstance(model, spec.SequenceToSequence | spec.RecurrentDecoder):
        assert model.d_model == 64
        return
    for stack in stacks(model):
        assert stack.layers == 3
        assert stack.block.dropout == 0.25
    assert runs(model)


@pytest.mark.parametrize("name", WIRINGS)
def test_stochastic_depth_of_every_wiring(name: str) -> None:
    model = preset(name, 50, 32, drop_path=0.5, dropout=0.0)
    assert {stack.block.drop_path for stack in stacks(model)} == {0.5}
    module: Any = build(model)
    tokens = torch.randint(0, 50, (2, 12))
    inputs = (tokens, tokens) if isinstance(model, spec.EncoderDecoder) else (tokens,)
    with torch.no_grad():
        first, second = module.train()(*inputs)[0], module(*inputs)[0]
        assert not torch.equal(first, second), "no sublayer was skipped"
        assert torch.equal(module.eval()(*inputs)[0], module(*inputs)[0])


def test_presets_of_before_are_the_same_specs() -> None:
    """What training asked of the families' own functions, it can ask by name."""
    sizes: dict[str, Any] = {"d_model": 32, "heads": 2, "layers": 1, "attention": "window:4"}
    assert preset("bert:tiny", 50, 16, **sizes) == bert.preset("tiny", 50, 16, **sizes)
    old = transformer.preset(
        "small",
        50,
        40,
        max_length=99,
        share="target",
        residual=spec.PreNorm(),
        position=spec.LearnedPosition(99),
        **sizes,
    )
    new = preset(
        "transformer:small",
        50,
        99,
        target_vocabulary=40,
        residual="pre",
        position="learned",
        **sizes,
    )
    assert new == old


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("gpt2:tiny", {"attention": "linformer"}, "no causal form"),
        ("llama:tiny", {"attention": "linformer", "position": "none"}, "no causal form"),
        ("bert:tiny", {"memory": 8}, "only decoder-only language models support a segment memory"),
        ("bert:tiny", {"decoder_attention": "softmax"}, "needs an encoder–decoder"),
        (
            "bert:tiny",
            {"attention": "linear", "attention_dropout": 0.2},
            "does not support attention_dropout",
        ),
        ("gpt2:tiny", {"target_vocabulary": 40}, "needs an encoder–decoder"),
        ("transformer:tiny", {"target_vocabulary": 40, "tie_embeddings": "all"}, "one vocabulary"),
        ("lstm:tiny", {"position": "rope"}, "setting of Transformers"),
        ("vit:tiny", {"position": "rope"}, "known: learned, sinusoidal"),
        ("wav2vec2:tiny", {"position": "rope"}, "positions of their own"),
        ("clip:tiny", {"position": "rope"}, "positions of their own"),
        ("graph:tiny", {"position": "learned"}, "positions of their own"),
        ("bert:tiny", {"decoder_layers": 2}, "known: "),  # and not another word
        ("clip:tiny", {"tie_embeddings": "none"}, "no output matrix"),
        ("gpt2:tiny", {"position": "rop"}, "rope"),
        ("gpt2:tiny", {"residual": "prenorm"}, "residual cannot be"),
        ("gpt2:tiny", {"tie_embeddings": "some"}, "tie_embeddings cannot be"),
        ("t5:tiny", {"attention": "performer"}, "no scores"),
        ("bert:tiny", {"heads": 3}, "is not divisible by 3 heads"),
    ],
)
def test_what_does_not_exist_says_why(name: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        preset(name, 50, 32, **changes)


def test_pixels_are_not_left_out() -> None:
    """A side that was asked for is a multiple of the patches; Swin fills its edges up."""
    with pytest.raises(SettingError, match=r"17 is not a multiple of the patch size 4\n.*= 16"):
        preset("vit:tiny", image_size=17, patch=4)
    assert preset("vit:tiny", image_size=16, patch=4)
    assert preset("siglip:so400m/14")  # 384 pixels, as published
