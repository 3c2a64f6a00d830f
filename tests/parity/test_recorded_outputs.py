"""output_hidden_states and output_attentions against transformers: the same names, the same tuples
of tensors, at all positions that are no padding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from test_calls import CASES, Inputs, quiet, without_padding
from torch import Tensor

import zoo
from regard import build, spec
from regard.core.attention import Mixer
from regard.core.context import Context
from regard.core.probe import Probe
from regard.families.decoders import gpt2
from regard.models import Model
from regard.models.hf_call import RecordedOutputs
from regard.system.errors import SettingError

pytest.importorskip("transformers")

BOTH: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True}
NAMES = [
    "BertModel",
    "BertForSequenceClassification",
    "AlbertForMaskedLM",
    "ElectraForPreTraining",
    "deberta, bare",
    "ViTModel",
    "DeiTForImageClassification",
    "CLIPModel",
    "CLIPTextModel",
    "Wav2Vec2ForCTC",
    "whisper",
    "t5 1.0",
    "t5 1.1",
    "bart",
    "mbart",
    "marian",
    "llama",
    "mistral, window",
    "gpt2",
    "neox",
]


def query_mask(name: str, inputs: Inputs, loaded: Model) -> Tensor | None:
    """The queries that are no padding."""
    if name == "cross_attentions" or name.startswith("decoder"):
        return inputs.get("decoder_attention_mask")
    mask = inputs.get("attention_mask")
    if mask is not None and "input_values" in inputs:
        return loaded.model.input.output_padding_mask(mask.bool())  # type: ignore[union-attr, operator]
    return mask


def rows(name: str, tensor: Tensor, inputs: Inputs, loaded: Model) -> Tensor:
    if tensor.dim() == 3:  # hidden states
        return without_padding(tensor, inputs, loaded)
    mask = query_mask(name, inputs, loaded)
    if mask is None or mask.shape[1] != tensor.shape[2]:
        return tensor
    return tensor.transpose(1, 2)[mask.bool()]


def assert_equal_tuples(
    name: str, ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], inputs: Inputs, loaded: Model
) -> None:
    assert len(ours) == len(theirs), name
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.shape == yours.shape, name
        difference = rows(name, mine, inputs, loaded) - rows(name, yours, inputs, loaded)
        assert difference.abs().max().item() < 3e-5, name


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_hidden_states_and_attentions_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, inputs = CASES[name](tmp_path)
    theirs.set_attn_implementation("eager")  # their fused kernels give no weights
    loaded = quiet(tmp_path)
    expected = theirs(**inputs, **BOTH)
    output = loaded(**inputs, **BOTH)
    # BERT and GPT-2 have an empty tuple of cross-attentions.
    tuples = {key: value for key, value in expected.items() if isinstance(value, tuple) and value}
    tuples = {key: value for key, value in tuples.items() if value[0] is not None}
    if name == "CLIPModel":
        for tower in ("text_model_output", "vision_model_output"):
            for key in ("hidden_states", "attentions"):
                assert_equal_tuples(key, output[tower][key], expected[tower][key], inputs, loaded)
        return
    assert [key for key in expected if key in output] == list(output)
    assert {key for key, value in output.items() if isinstance(value, tuple)} == set(tuples)
    for key, value in tuples.items():
        assert_equal_tuples(key, output[key], value, inputs, loaded)
    # Nothing is added, and nothing changes, where nobody asks.
    plain = loaded(**inputs)
    assert not any(isinstance(value, tuple) for value in plain.values())
    assert torch.equal(plain[0], output[0])


@pytest.mark.parametrize("name", ["reformer", "bart, classes", "mt5"])
@torch.inference_mode()
def test_hidden_states_of_other_families(name: str, tmp_path: Path) -> None:
    """Reformer's attentions are left out: theirs are of chunks, ours of all positions."""
    theirs = zoo.save(name, tmp_path)
    loaded = quiet(tmp_path)
    ids = torch.randint(8, 50, (2, 12))
    ids[:, -1] = 2  # the end token, at which BART reads its labels
    inputs = {"input_ids": ids}
    if name == "mt5":
        inputs["decoder_input_ids"] = ids[:, :5]
    expected = theirs(**inputs, output_hidden_states=True)
    output = loaded(**inputs, output_hidden_states=True)
    keys = [key for key in output if key.endswith("hidden_states")]
    assert keys == [key for key in expected if key.endswith("hidden_states")]
    for key in keys:
        assert_equal_tuples(key, output[key], tuple(expected[key]), inputs, loaded)


def test_each_is_asked_for_by_itself_and_has_gradients(tmp_path: Path) -> None:
    _, inputs = CASES["llama"](tmp_path)
    loaded = quiet(tmp_path)
    output = loaded(**inputs, output_hidden_states=True)
    assert list(output) == ["logits", "hidden_states"]
    (gradient,) = torch.autograd.grad(output.logits.sum(), output.hidden_states[0])
    assert gradient.abs().sum() > 0
    output = loaded(**inputs, output_attentions=True)
    assert list(output) == ["logits", "attentions"]
    assert output.attentions[0].requires_grad
    sums = output.attentions[0].sum(dim=-1).transpose(1, 2)[inputs["attention_mask"].bool()]
    torch.testing.assert_close(sums, torch.ones_like(sums))


class Mean(Mixer):
    """A kernel that computes no weights: the mean of the values so far."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Tensor:
        return v.cumsum(dim=2) / torch.arange(1, v.shape[2] + 1)[:, None]


@dataclass(frozen=True)
class MeanAttention:
    dropout: float = 0.0

    def build(self, sizes: spec.AttentionSizes) -> Mean:
        return Mean()


def test_a_model_without_attention_has_no_weights() -> None:
    ids = torch.tensor([[3, 4, 5]])
    recurrent = spec.RecurrentDecoder(8, spec.Tokens(11, position=None), spec.Recurrent("lstm"))
    with pytest.raises(SettingError, match="no attention"):
        Model(build(recurrent), recurrent)(ids, output_attentions=True)
    states = Model(build(recurrent), recurrent)(ids, output_hidden_states=True).hidden_states
    assert [state.shape for state in states] == [(1, 3, 8)] * 2


def test_a_kernel_that_computes_no_weights_shows_them() -> None:
    """They are its output for values that are one-hot positions."""
    ids = torch.tensor([[3, 4, 5]])
    description = gpt2.preset("tiny", 11, 16)
    attention = spec.Attention(2, 4, 4, mixer=MeanAttention())
    block = spec.Block(attention, description.stack.block.feedforward)
    own = spec.Decoder(
        description.d_model,
        description.tokens,
        spec.Stack.of(2, block, pattern=spec.CausalMask()),
    )
    model = Model(build(own).eval(), own)
    assert len(model(ids, output_hidden_states=True).hidden_states) == 3
    weights = model(ids, output_attentions=True).attentions[0]  # [1, H, T, S]
    expected = torch.tensor([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(weights, expected.expand(1, 2, -1, -1))


def test_global_tokens_have_the_weights_of_their_own_projections() -> None:
    """Longformer: what a layer mixes is its weights times its values, in global rows too."""
    attention = spec.Attention(2, 4, 4, projection="global")
    stack = spec.Stack.of(1, spec.Block(attention, spec.FeedForward(9)), spec.WindowMask(2))
    encoder = build(spec.Encoder(8, spec.Tokens(11), stack)).eval()
    which = torch.tensor([[True, False, False, True, False, False]])
    probe = Probe(["*.self", "*.self.global", "*.self.mixed"], gradients=True)
    encoder(torch.arange(6)[None], None, Context(probe, global_tokens=which))
    (weights,) = RecordedOutputs(encoder, {}, probe).among({})["attentions"]  # [1, H, T, S]
    local = weights @ probe.attentions["encoder.0.self"].v
    of_global = weights @ probe.attentions["encoder.0.self.global"].v
    expected = torch.where(which[:, None, :, None], of_global, local)
    torch.testing.assert_close(expected, probe.tensors["encoder.0.self.mixed"])
