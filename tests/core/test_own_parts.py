"""Parts from outside the package: an attention and a position of a user's own keep all promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import LanguageModel, load, spec
from regard.builder import build
from regard.core.context import Context
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import Call
from regard.core.mixers.explicit_attention import ExplicitAttention
from regard.core.mixers.scaled_dot_product_attention import attention_weights
from regard.core.positions.position_terms import PositionTerms, StackPosition
from regard.core.positions.relative_position import alibi_slopes
from regard.core.probe import Probe
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch
from regard.families.folder import ModelFolder, write_model
from regard.system.errors import ModelError

VOCABULARY = 23


@dataclass(frozen=True)
class OwnSoftmax:
    """Softmax attention once more, so that it can be compared."""

    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> nn.Module:
        return OwnSoftmaxAttention(sizes.scale)


class OwnSoftmaxAttention(ExplicitAttention):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        return attention_weights(q, k, allowed, self.scale, bias)


@dataclass(frozen=True)
class Cosine:
    """Cosines of queries and keys, with a learned temperature of each head."""

    start: float = 5.0
    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> nn.Module:
        return CosineAttention(sizes.heads, self.start)


class CosineAttention(ExplicitAttention):
    def __init__(self, heads: int, start: float) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.linspace(start, start + 1, heads))

    def attention_weights(
        self, q: Tensor, k: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        q = functional.normalize(q, dim=-1) * self.temperature[:, None, None]
        return attention_weights(q, functional.normalize(k, dim=-1), allowed, 1.0, bias)


@dataclass(frozen=True)
class OwnAlibi:
    """ALiBi once more."""

    def build(self, sizes: spec.PositionSizes) -> nn.Module:
        return OwnAlibiBias(sizes.heads)


class OwnAlibiBias(StackPosition):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(heads)

    def terms(self, mask: AttentionMask, ids: Tensor, call: Call) -> PositionTerms:
        distance = (mask.queries[:, None] - mask.keys).abs()  # [T, S]
        return PositionTerms(ids, bias=ScoreBias(-(self.slopes[:, None, None] * distance)[None]))


def decoder(mixer: spec.Mixer, **more: Any) -> spec.Decoder:
    attention = spec.Attention(4, 6, 5, groups=2, mixer=mixer)
    block = spec.Block(attention, spec.FeedForward(20), dropout=0.0)
    stack = spec.Stack.of(2, block, **{"pattern": spec.CausalMask(), **more})
    return spec.Decoder(16, spec.Tokens(VOCABULARY, dropout=0.0), stack)


def translator(mixer: spec.Mixer) -> spec.EncoderDecoder:
    attention = spec.Attention(4, 6, 5, mixer=mixer)
    feedforward = spec.FeedForward(20)
    tokens = spec.Tokens(VOCABULARY, dropout=0.0)
    return spec.EncoderDecoder(
        16,
        tokens,
        tokens,
        spec.Stack.of(2, spec.Block(attention, feedforward, dropout=0.0)),
        spec.Stack.of(
            2, spec.Block(attention, feedforward, cross=attention, dropout=0.0), spec.CausalMask()
        ),
    )


def model_pair(make: Callable[[spec.Mixer], Any]) -> tuple[Any, Any]:
    """The package's softmax attention and that of this file, with the same weights."""
    packaged = build(make(spec.SoftmaxAttention())).eval()
    own = build(make(OwnSoftmax())).eval()
    own.load_state_dict(packaged.state_dict())
    return packaged, own


VARIANTS: dict[str, dict[str, Any]] = {
    "causal": {},
    "sliding window": {"pattern": spec.CausalMask(window=3)},
    "sparse pattern": {"pattern": spec.And(spec.CausalMask(), spec.StridedMask(2))},
    "rotary": {"position": spec.Rope()},
    "T5": {"position": spec.T5Bias(8, 16)},
    "own ALiBi": {"position": OwnAlibi()},
}


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_cached_decoding_is_the_forward_pass(variant: str) -> None:
    model = build(decoder(Cosine(), **VARIANTS[variant])).eval()
    tokens = torch.randint(VOCABULARY, (3, 11))
    expected = model.head(model(tokens)[0])
    state = model.start(model.encode(tokens[:, :4]), capacity=7)
    steps = [model.step(tokens[:, i : i + 1], state) for i in range(3, 11)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected[:, 3:])


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    model = build(translator(Cosine())).eval()
    source = torch.randint(VOCABULARY, (1, 6))
    target = torch.randint(VOCABULARY, (1, 5))
    padding_mask = torch.arange(9)[None] < 6
    padded, _ = model(functional.pad(source, (0, 3)), target, padding_mask)
    torch.testing.assert_close(padded, model(source, target)[0])


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_own_softmax_is_the_packages(variant: str) -> None:
    packaged, own = model_pair(lambda mixer: decoder(mixer, **VARIANTS[variant]))
    tokens = torch.randint(VOCABULARY, (2, 9))
    torch.testing.assert_close(own(tokens)[0], packaged(tokens)[0])


@torch.no_grad()
def test_beam_search_is_the_packages() -> None:
    packaged, own = model_pair(translator)
    sources = [torch.randint(3, VOCABULARY, (length,)).tolist() for length in (5, 7, 4)]
    settings = DecodingSettings(BeamSearch(3))
    special_tokens = SpecialTokens(pad=0, start=1, end=2)
    results = [decode(model, sources, special_tokens, settings) for model in (packaged, own)]
    tokens = [[beam.tokens for beams in result for beam in beams] for result in results]
    assert tokens[0] == tokens[1]


@torch.no_grad()
def test_own_position_is_the_packages() -> None:
    packaged = build(decoder(spec.SoftmaxAttention(), position=spec.Alibi())).eval()
    own = build(decoder(spec.SoftmaxAttention(), position=OwnAlibi())).eval()
    own.load_state_dict(packaged.state_dict())
    tokens = torch.randint(VOCABULARY, (2, 9))
    torch.testing.assert_close(own(tokens)[0], packaged(tokens)[0])


@torch.no_grad()
def test_a_probe_sees_the_weights() -> None:
    model = build(decoder(Cosine())).eval()
    probe = Probe(["decoder.1.self"])
    model(torch.randint(VOCABULARY, (2, 7)), None, Context(probe))
    weights = probe.weights("decoder.1.self")  # [B, H, T, S]
    call = probe.attentions["decoder.1.self"]
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 4, 7))
    assert (weights.triu(1) == 0).all()
    v = call.v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(weights @ v, call.mixer(call.q, call.k, call.v, call.mask))  # type: ignore[operator]
    some = probe.weights("decoder.1.self", torch.tensor([4, 2]), torch.tensor([3]))
    torch.testing.assert_close(some, weights[:, 3:][:, :, [4, 2]])


# ------------------------------------------------------------------ what is refused


def test_scores_of_each_layer_are_refused() -> None:
    with pytest.raises(ModelError, match="RelativeKeys needs dot-product scores"):
        decoder(Cosine(), position=spec.RelativeKeys(4))


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(ModelError, match=r"mixer cannot be 'softmax'\n.*with `dropout` and"):
        spec.Attention(4, 6, 5, mixer="softmax")  # type: ignore[arg-type]


@dataclass(frozen=True)
class Returns:
    """A part of one's own whose `build` returns what a test gives it."""

    module: Any
    dropout: float = 0.0

    def build(self, sizes: Any) -> Any:
        return self.module


@pytest.mark.parametrize("built", [None, nn.Linear(2, 2), OwnSoftmaxAttention], ids=str)
def test_what_builds_no_mixer_and_no_position(built: Any) -> None:
    with pytest.raises(ModelError, match=r"Returns.build returned .*, not a Mixer\n.*extend.Mixer"):
        build(decoder(Returns(built)))
    with pytest.raises(ModelError, match="not a StackPosition"):
        build(decoder(Cosine(), position=Returns(built)))


def test_a_class_is_no_part() -> None:
    with pytest.raises(ModelError, match="mixer cannot be"):
        decoder(Cosine)  # type: ignore[arg-type]


# ------------------------------------------------------------------ files


def test_a_spec_is_read_with_its_own_kinds() -> None:
    description = decoder(Cosine(3.0), position=OwnAlibi())
    data = json.loads(json.dumps(spec.to_dict(description)))
    assert spec.from_dict(data, kinds=[Cosine, OwnAlibi]) == description
    with pytest.raises(ModelError, match=r"unknown kind 'Cosine'\s+→ .*kinds=\[Cosine\]"):
        spec.from_dict(data)


def test_a_folder_is_opened_with_its_own_kinds(tmp_path: Path) -> None:
    description = decoder(Cosine())
    model = build(description).eval()
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(
        folder,
        ModelFolder(description, dict(model.named_parameters()), None, {}),
        model_type="regard",
    )
    with pytest.raises(ModelError, match="unknown kind 'Cosine'"):
        load(folder)
    opened = load(folder, kinds=[Cosine], device="cpu")
    assert opened.spec == description
    tokens = torch.randint(VOCABULARY, (2, 9))
    assert isinstance(opened, LanguageModel)
    torch.testing.assert_close(opened.model(tokens)[0], model(tokens)[0])


def test_a_name_of_the_package_is_refused() -> None:
    own: Any = dataclass(frozen=True)(type("Rope", (), {"build": Cosine.build}))
    with pytest.raises(ModelError, match=r"Rope is the name of a part of regard\.spec"):
        spec.to_dict(decoder(Cosine(), position=own()))
    with pytest.raises(ModelError, match=r"Rope is the name of a part of regard\.spec"):
        spec.from_dict({"kind": "Rope"}, kinds=[own])


def test_what_json_has_not_is_refused() -> None:
    with pytest.raises(ModelError, match="cannot be written to JSON"):
        spec.to_dict(replace(Cosine(), start=torch.tensor(5.0)))  # type: ignore[arg-type]
