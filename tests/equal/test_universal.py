"""The Universal Transformer: one step is plain, halting is Graves' mean, and what is decoded is
what was read.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import Context, LayerContext
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Limit
from regard.families.encoder_decoders import universal
from regard.system.errors import ModelError
from regard.wirings.encoder_decoder import EncoderDecoder


def described(layers: int, universal: spec.Universal | None) -> spec.Decoder:
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(12), dropout=0.0)
    scheme = universal or spec.Shared()
    stack = spec.Stack.of(layers, block, spec.CausalMask(), scheme=scheme)
    return spec.Decoder(8, spec.Tokens(19, dropout=0.0), stack)


TOKENS = torch.arange(2 * 9).view(2, 9) % 19


def test_one_step_is_plain() -> None:
    halting = described(1, spec.Universal(timing=False))
    model, plain = build(halting).double(), build(described(1, None)).double()
    plain.load_state_dict({n: p for n, p in model.state_dict().items() if "universal" not in n})
    hidden, losses = model(TOKENS)
    torch.testing.assert_close(hidden, plain(TOKENS)[0])
    assert losses["ponder"].item() == pytest.approx(0.01 * 2)  # one step, and all of it was left
    assert trainable(model) == parameter_count(halting)


def test_without_halting_and_timing_it_is_the_shared_stack() -> None:
    model = build(described(3, spec.Universal(timing=False, halts=False))).double()
    plain = build(described(3, None)).double()
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(TOKENS)[0], plain(TOKENS)[0])
    timed = build(described(3, spec.Universal(halts=False))).double()
    timed.load_state_dict(model.state_dict())
    assert not torch.allclose(timed(TOKENS)[0], model(TOKENS)[0])


def test_halting_is_the_mean_by_probabilities() -> None:
    """Place by place, with numbers instead of masks."""
    torch.manual_seed(0)
    model = build(described(5, spec.Universal(timing=False, cost=1.0))).double()
    universal, block = model.stack.universal, model.stack.blocks[0]
    assert universal is not None
    assert universal.halt is not None
    with torch.no_grad():
        universal.halt.bias.fill_(-0.5)  # type: ignore[union-attr]
    x = model.tokens(TOKENS)
    inputs = model.stack.layer_inputs(x, None, Context())[0]  # type: ignore[operator, union-attr]
    states = [x]
    for _ in range(5):
        states.append(block(states[-1], inputs, LayerContext()))
    likely = [torch.sigmoid(universal.halt(state))[..., 0] for state in states[:-1]]
    found, losses = model(TOKENS)
    spent = 0.0
    for b in range(2):
        for t in range(9):
            given, expected = 0.0, torch.zeros(8).double()
            for n in range(5):
                p = likely[n][b, t].item()
                if given + p >= 1 - 0.01 or n == 4:
                    expected += (1 - given) * states[n + 1][b, t]
                    spent += n + 1 + 1 - given
                    break
                given += p
                expected += p * states[n + 1][b, t]
            torch.testing.assert_close(found[b, t], expected, rtol=1e-5, atol=1e-5)
    assert losses["ponder"].item() == pytest.approx(spent / 18, rel=1e-5)
    losses["ponder"].backward()
    assert universal.halt.weight.grad.abs().sum() > 0  # type: ignore[union-attr]


def test_decoded_as_read_whatever_stands_in_front() -> None:
    model = build(described(4, spec.Universal())).double().eval()
    whole = model.head(model(TOKENS)[0])
    state = model.start(model.encode(TOKENS[:, :1]), capacity=9)
    pieces = [model.step(piece, state) for piece in TOKENS.split([1, 5, 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), TOKENS], 1)
    padding_mask = torch.arange(12).expand(2, -1) >= 3
    torch.testing.assert_close(
        model.head(model(padded, padding_mask)[0])[:, 3:], whole, rtol=1e-9, atol=1e-9
    )


def test_steps_of_several_layers_are_refused() -> None:
    stack = described(2, spec.Universal()).stack
    narrower = replace(stack.block, feedforward=spec.FeedForward(11))
    with pytest.raises(ModelError, match="equal blocks"):
        replace(stack, blocks=(stack.block, narrower))
    assert spec.from_dict(spec.to_dict(stack)) == stack


def test_beams_are_told_the_position_they_are_at() -> None:
    """The score of a hypothesis is its log-probability when it is read: timing counts alike."""
    torch.manual_seed(0)
    described = universal.preset("tiny", 17, 17, d_model=8, d_ff=12, heads=2, layers=3)
    model = build(described).double().eval()
    assert isinstance(model, EncoderDecoder)
    source = [3, 4, 5, 6, 7]
    settings = DecodingSettings(BeamSearch(3), Limit.fixed(6))
    (hypotheses,) = decode(model, [source], SpecialTokens(0, 1, 2), settings)
    assert hypotheses
    for hypothesis in hypotheses:
        end = [2] if hypothesis.finished else []
        target = torch.tensor([[1, *hypothesis.tokens, *end]])
        with torch.inference_mode():
            hidden, _ = model(torch.tensor([source]), target[:, :-1])
            log_probabilities = model.head(hidden).log_softmax(dim=-1)
        expected = log_probabilities.gather(2, target[:, 1:, None]).sum()
        assert hypothesis.log_probability == pytest.approx(expected.item(), abs=1e-5)
