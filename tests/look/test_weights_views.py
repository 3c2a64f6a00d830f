"""Neurons, circuits and angles of one's own model, against what the model itself computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from looked import MODELS, TEXT, WORDS, translator, writer
from regard import spec
from regard.builder import build
from regard.families.presets import preset
from regard.look import angles, circuits, fitting_views, head_circuit, look, neurons
from regard.models import Model
from regard.system.errors import DataError, SettingError

TEXTS = [TEXT, "The cat sees a dog.", "A small dog.", TEXT]


@pytest.mark.parametrize("name", ["writer", "reader", "translator"])
def test_neurons_are_those_of_the_pass_over_each_text(name: str) -> None:
    model: Any = MODELS[name]()
    stack = next(iter(model.model.stacks()))
    chosen = [3, 0]
    view = neurons(model, TEXTS, layer=1, neurons=chosen, top=5, size=3)
    probe = f"{stack}.1.feedforward.hidden"
    target = "" if name == "translator" else None
    runs = [look(model, text, target=target, ask=[probe]) for text in TEXTS]
    hidden = [run[probe] for run in runs]  # [T, F] of each text
    everything = np.concatenate(hidden)
    assert view.tokens == len(everything)
    np.testing.assert_allclose(view.mean, everything[:, chosen].mean(0), atol=1e-6)
    np.testing.assert_allclose(view.active, (everything[:, chosen] > 0).mean(0), atol=1e-6)
    for row, neuron in enumerate(chosen):
        best = np.sort(everything[:, neuron])[::-1][:5]
        np.testing.assert_allclose(view.activations[row], best, atol=1e-5)
        for value, excerpt in zip(view.activations[row], view.excerpts[row], strict=True):
            assert hidden[excerpt.text][excerpt.position, neuron] == pytest.approx(value, abs=1e-5)
            token = runs[excerpt.text].source[excerpt.position]
            assert excerpt.token.strip() == token.strip("▁ ")


def test_the_neurons_that_single_tokens_excite_most_are_found() -> None:
    model = writer()
    view = neurons(model, TEXTS, layer=0, size=2)
    hidden = np.concatenate(
        [look(model, text, ask=["*.hidden"])["decoder.0.feedforward.hidden"] for text in TEXTS]
    )
    peaks = (hidden.max(0) - hidden.mean(0)) / hidden.std(0)
    assert list(view.neurons) == np.argsort(-peaks)[:8].tolist()


def test_a_value_promotes_what_it_writes() -> None:
    """Of a model whose last feed-forward network is its only layer, with the neuron switched on by
    hand: its promoted tokens are those whose logits rise most."""
    model: Any = writer(block=spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(6), dropout=0.0))
    stack = model.model.stack
    view = neurons(model, TEXTS, neurons=[2], top=4)
    assert view.promoted_logits is not None
    value = stack.blocks[-1].feedforward.outer.weight[:, 2]  # [D]
    with torch.no_grad():
        head = model.model.lm_head
        change = head(stack.finish(value[None, None])) - head(stack.finish(0 * value[None, None]))
    best = change.flatten().topk(4)
    assert list(view.promoted[0]) == WORDS.tokens(best.indices.tolist())
    np.testing.assert_allclose(view.promoted_logits[0], best.values, atol=1e-5)


def test_an_encoder_promotes_nothing_and_a_decoder_reads_what_it_writes() -> None:
    model = translator()
    assert neurons(model, [TEXT]).promoted == ()
    view = neurons(model, [TEXT], stack="decoder", top=3)
    assert view.promoted
    assert view.layer == "decoder.1.feedforward"


def test_wrong_neurons_are_refused() -> None:
    model = writer()
    for wrong in ({"layer": 2}, {"neurons": [20]}, {"stack": "encoder"}):
        with pytest.raises(SettingError):
            neurons(model, TEXTS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError):
        neurons(model, [])
    with pytest.raises(DataError):
        neurons(model, TEXT)


# ------------------------------------------------------------------ circuits


def test_previous_token_heads_are_found() -> None:
    """A window of two tokens without scores attends evenly to the token and the one before."""
    model: Any = writer(spec.CausalMask(2))
    for block in model.model.stack.blocks:
        for parameter in block.attention.project.parameters():
            torch.nn.init.zeros_(parameter)
    view = circuits(model)
    kinds = dict(zip(view.kinds, view.scores, strict=True))
    np.testing.assert_allclose(kinds["previous token"], 0.5, atol=1e-6)
    np.testing.assert_allclose(kinds["induction"], 0.0, atol=1e-6)
    # Even attention is chance.
    chance = dict(zip(view.kinds, view.chance, strict=True))
    assert chance["previous token"] == pytest.approx(0.5)
    assert chance["duplicate token"] == 0.0


def test_a_head_that_copies_scores_one() -> None:
    tied = spec.Tokens(len(WORDS), None, dropout=0.0)
    block = spec.Block(spec.Attention(1, 24, 24, bias=""), spec.FeedForward(8), dropout=0.0)
    stack = spec.Stack.of(2, block, spec.CausalMask(), spec.Alibi())
    core: Any = build(spec.Decoder(24, tied, stack))
    model: Any = writer()
    model.model = core.eval()
    with torch.no_grad():
        for number, part in enumerate(core.stack.blocks):
            part.attention.project.qkv.weight[48:] = torch.eye(24)
            sign = 1.0 if number == 0 else -1.0
            part.attention.output.weight.copy_(sign * torch.eye(24))
    view = circuits(model)
    # W_E W_OV W_U is the table times its transpose: positive, and in the second layer negative.
    copying = view.scores[view.kinds.index("copying")]
    np.testing.assert_allclose(copying, [[1.0], [-1.0]], atol=1e-4)


def test_composition_lists_the_strongest_pairs() -> None:
    view = circuits(writer())
    best = view.strongest[0]
    assert best.score == pytest.approx(max(values.max() for values in view.composition.values()))
    writes, reads = best.writer.rsplit(" ", 1), best.reader.rsplit(" ", 1)
    layers = [int(name.split(".")[1]) for name, _ in (writes, reads)]
    place = (layers[0], int(writes[1]), layers[1], int(reads[1]))
    assert view.composition[best.mode][place] == pytest.approx(best.score)


def test_one_head_on_a_text_is_what_the_first_layer_computes() -> None:
    """Without positions, a head of the first layer sees the embeddings alone: its q · k."""
    block = spec.Block(
        spec.Attention(4, 6, 6, groups=2), spec.FeedForward(8), residual=spec.PreNorm(), dropout=0.0
    )
    model: Any = writer(position=spec.Alibi(), block=block)
    call = look(model, TEXT, ask=["decoder.0.self"]).call("decoder.0.self")
    view = head_circuit(model, TEXT, layer=0, head=3)
    expected = call.q[0, 3] @ call.k[0, 1].mT  # heads 2 and 3 share the second key head
    np.testing.assert_allclose(view.scores, expected, rtol=1e-4, atol=1e-4)
    assert view.logits is not None
    assert view.logits.shape == (len(view.tokens), 6)
    # What the head adds where all attention is on a token, read by the head of the model.
    stack = model.model.stack
    weight = stack.blocks[0].attention.output.weight[:, 18:24]  # [D, E] of head 3
    adds = call.v[0, 1, 2] @ weight.mT  # [D]
    with torch.no_grad():
        lm = model.model.lm_head
        change = lm(stack.finish(adds[None, None])) - lm(stack.finish(0 * adds[None, None]))
    np.testing.assert_allclose(view.logits[2], change.flatten().topk(6).values, rtol=1e-4)


# ------------------------------------------------------------------ angles


@pytest.mark.parametrize("name", ["writer", "window", "translator", "reader"])
def test_lengths_and_angles_multiply_to_the_scores(name: str) -> None:
    model: Any = MODELS[name]()
    target = "Der Hund." if name == "translator" else None
    run = look(model, TEXT, target=target)
    for attention in run.probe.attentions:
        call = run.call(attention)
        view = angles(run, attention, head=call.q.shape[1] - 1)
        scores = call.q[0, -1] @ call.k[0, -1].mT
        product = view.query_lengths[:, None] * view.key_lengths * view.cosines
        visible = ~np.isnan(product)
        np.testing.assert_allclose(product[visible], scores.numpy()[visible], rtol=1e-4, atol=1e-5)
        weights = run.weights(attention, heads=[call.q.shape[1] - 1])[0]
        assert (weights[~visible] == 0).all()


def test_what_explains_scores() -> None:
    model: Any = writer()
    run = look(model, TEXT)
    call = run.call("decoder.1.self")
    view = angles(run)
    # Of keys of one length, angles explain all.
    call.k.copy_(call.k / call.k.norm(dim=-1, keepdim=True))
    same = angles(run)
    assert same.by_angle == pytest.approx(1.0, abs=1e-5)
    assert same.by_length == pytest.approx(0.0, abs=1e-4)
    # Of keys that all point alike, lengths do.
    call.k.copy_(call.k[:, :, :1] * torch.arange(1.0, call.k.shape[2] + 1)[:, None])
    alike = angles(run)
    assert alike.by_length == pytest.approx(1.0, abs=1e-5)
    assert view.by_angle < 1.0


def test_additive_attention_has_no_angles() -> None:
    description = preset("bahdanau:tiny", len(WORDS), 32)
    assert "angles" not in fitting_views(Model(build(description), description))
