"""Probes: what they show is what the mixers used, and looking changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from looked import (
    BLOCK,
    MODELS,
    TARGET,
    TEXT,
    WORDS,
    Tokenized,
    explicit,
    target_of,
    translator,
    writer,
)
from regard import spec
from regard.builder import build
from regard.core.mixers import scaled_dot_product_attention
from regard.core.probe import Probe
from regard.families import presets
from regard.look import heads, look, probes, translate, written
from regard.look.forward import forward
from regard.look.inspectable import read_input
from regard.look.probe_names import attentions
from regard.models import Model
from regard.system.errors import SettingError


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]()


def test_weights_are_those_of_a_wholly_explicit_model(model: Model) -> None:
    run = look(model, TEXT, target=target_of(model))
    fused = {name: run.weights(name) for name in run.probe.attentions}
    explicit_weights = explicit(model.model)
    with torch.no_grad():
        forward(model.model, run.model_inputs.named)
    assert len(explicit_weights) == len(fused) > 1
    for (name, weights), mixed in zip(fused.items(), explicit_weights, strict=True):
        np.testing.assert_allclose(
            weights, mixed[0].detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
        left, right = run.labels(name)
        assert weights.shape[1:] == (len(left), len(right))


def test_some_rows_and_heads_are_those_of_all(model: Model) -> None:
    run = look(model, TEXT, target=target_of(model))
    for name in run.probe.attentions:
        many = run.call(name).q.shape[1]
        some = run.weights(name, rows=[4, 0], heads=[many - 1, 1])
        np.testing.assert_allclose(some, run.weights(name)[[many - 1, 1]][:, [4, 0]], atol=1e-6)
        view = run.attention(name, rows=[4], heads=[1])
        assert view.rows == (run.labels(name)[0][4],)
        assert view.weights.shape == (1, 1, len(view.columns))


def test_looking_changes_nothing_and_gives_every_probe(model: Model) -> None:
    target = target_of(model)
    nothing = look(model, TEXT, target=target, ask=())
    assert nothing.names == []
    with torch.inference_mode():
        usual = forward(model.model, nothing.model_inputs.named)
    run = look(model, TEXT, target=target, ask=["*"])
    assert run.names == probes(model.model)
    assert torch.equal(run.tensor("logits"), usual)
    for name in run.names:
        assert np.isfinite(run[name]).all(), name
    one = look(model, TEXT, target=target, ask=[run.names[1], "logits"])
    assert one.names == [run.names[1], "logits"]
    last = [name for name in run.names if name.endswith(".output")][-1]
    assert run[last].shape[-1] == 24


def test_looking_stays_on_the_fused_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator()
    calls: list[int] = []
    usual = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *a, **k: calls.append(1) or usual(*a, **k),
    )
    monkeypatch.setattr(
        scaled_dot_product_attention,
        "attention_weights",
        lambda *a: pytest.fail("weights were computed before they were asked"),
    )
    look(model, TEXT, target=TARGET, ask=["encoder.0.self.weights"])
    assert len(calls) == 2 + 2 * 2


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        result = function(*arguments, **(options or {}))
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, Tensor):
                self.numbers = max(self.numbers, value.numel())
        return result


@pytest.mark.parametrize("kind", ["writer", "linear"])
def test_a_long_input_is_looked_at_by_rows(kind: str) -> None:
    """4,096 tokens: no tensor has as many numbers as one head's weights, neither in the run nor when rows are asked."""
    model = MODELS[kind]()
    length = 4096
    ids = torch.randint(4, len(WORDS), (1, length))
    with Largest() as largest:
        run = look(model, ids, ask=["decoder.1.self.weights", "decoder.0.self.q"])
        weights = run.weights("decoder.1.self", rows=[4000, 17, 4095], heads=[2])
    assert weights.shape == (1, 3, length)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-4)
    assert weights[0, 1, 18:].max() == 0
    assert largest.numbers < length * length // 8


def test_an_encoder_decoder_translates_first() -> None:
    model = translator()
    run = model.look(TEXT, ask=["decoder.*.cross.weights"])
    assert run.source == (*WORDS.tokens(WORDS.encode(TEXT)), "</s>")
    assert WORDS.decode(WORDS.vocabulary[token] for token in run.target) == model.translate(TEXT)
    forced = model.look(TEXT, target=TARGET)
    assert forced.target == (*WORDS.tokens(WORDS.encode(TARGET)), "</s>")
    assert forced.weights("decoder.0.cross").shape == (3, len(forced.target), len(forced.source))
    longer = model.look("He.", target=TARGET)
    assert len(longer.target) > len(longer.source)
    np.testing.assert_allclose(longer.weights("decoder.0.cross").sum(axis=-1), 1.0, atol=1e-5)


def test_what_was_read_and_written_may_be_given_as_it_is() -> None:
    model = translator()
    ids = model.output_tokenizer.input_ids(TARGET)
    asked = ("*.weights", "*.residual", "logits")
    run = look(model, read_input(model, TEXT), target=ids, ask=asked)
    expected = look(model, TEXT, target=TARGET, ask=asked)
    assert run.target == expected.target
    for name in expected.names:
        np.testing.assert_array_equal(run[name], expected[name])


def test_edits_and_heads_switched_off_act_together() -> None:
    model = translator()
    off = [("decoder.0.cross", 1)]
    edits = {"encoder.output": torch.zeros_like}
    both = look(model, TEXT, target=TARGET, ask="logits", off=off, edits=edits)
    each = look(model, TEXT, target=TARGET, ask="logits", edits=edits)
    assert not np.allclose(both["logits"], each["logits"], atol=1e-5)
    assert not np.allclose(each["logits"], look(model, TEXT, target=TARGET, ask="logits")["logits"])


def test_heads_switched_off_are_zeroed_slices_of_the_output_projection(model: Model) -> None:
    """In the whole run, and step by step in decoding."""
    target = target_of(model)
    off = [heads(model.model)[1], heads(model.model)[-1]]
    edited = look(model, TEXT, target=target, ask=["logits"], off=off)["logits"]
    plain = look(model, TEXT, target=target, ask=["logits"])["logits"]
    decoded = translate(model, TEXT, off=off)[0] if model.special_tokens else None
    with torch.no_grad():
        for name, head in off:
            part: Any = attentions(model.model)[name]
            part.output.weight.unflatten(1, (part.project.heads, -1))[:, head] = 0
    np.testing.assert_allclose(
        edited, look(model, TEXT, target=target, ask=["logits"])["logits"], rtol=1e-4, atol=1e-5
    )
    assert not np.allclose(edited, plain, atol=1e-3)
    if decoded is not None:
        again = translate(model, TEXT)[0]
        assert decoded.tokens == again.tokens
        assert decoded.score == pytest.approx(again.score, rel=1e-4)
        assert isinstance(written(model, decoded), str)


def test_tensors_of_other_front_ends() -> None:
    image = spec.Patches(size=8, patch=4)
    description = spec.Encoder(
        24, image, spec.Stack.of(1, BLOCK), (spec.Pool(), spec.ClassifierHead(3))
    )
    run = look(Model(build(description).eval(), description), torch.randn(1, 3, 8, 8), ask=["*"])
    assert run.source == ("extra 0", "0,0", "0,1", "1,0", "1,1")
    assert run.attention("encoder.0.self").weights.shape == (4, 5, 5)
    sound = spec.Spectrogram(3, spec.Sinusoidal())
    description = spec.Encoder(24, sound, spec.Stack.of(1, BLOCK))
    model = Model(build(description).eval(), description)
    assert look(model, torch.randn(1, 3, 10)).source == ("0", "1", "2", "3", "4")
    with pytest.raises(SettingError, match="tokenizer"):
        look(model, "text")


def test_two_towers() -> None:
    tokens = spec.Tokens(len(WORDS), dropout=0.0)
    text = spec.Encoder(24, tokens, spec.Stack.of(1, BLOCK), (spec.Pool(width=5),))
    image = spec.Encoder(
        24, spec.Patches(size=8, patch=4), spec.Stack.of(1, BLOCK), (spec.Pool(width=5),)
    )
    description = spec.DualEncoder(text, image)
    model = Tokenized(build(description).eval(), description)
    assert set(look(model, TEXT).probe.attentions) == {"text.encoder.0.self"}
    assert set(look(model, torch.randn(1, 3, 8, 8)).probe.attentions) == {"image.encoder.0.self"}


def test_windows_of_an_image_are_named_by_their_places() -> None:
    description = presets.preset("swin:tiny", 3, 32, image_size=32, patch=4, d_model=12, layers=2)
    model = Tokenized(build(description).eval(), description)
    run = look(model, torch.randn(1, 3, 32, 32))
    for name in run.probe.attentions:
        shown = run.attention(name)
        assert len(shown.columns) == shown.weights.shape[-1]
        assert shown.columns[0] == "0,0"
        assert str(shown)


def test_a_model_without_attention_says_so() -> None:
    description = presets.preset("lstm-lm:tiny", len(WORDS), 32)
    model = Tokenized(build(description).eval(), description)
    with pytest.raises(SettingError, match=r"no attention\n.*residual"):
        look(model, TEXT, ask=["*.weights"])
    assert look(model, TEXT, ask=["*.residual"]).probe.tensors


def test_errors_name_what_there_is() -> None:
    model = translator()
    with pytest.raises(SettingError, match=r"did you mean 'encoder.1.self.weights'"):
        model.look(TEXT, ask=["encoder.1.self.wieghts"])
    run = model.look(TEXT, target=TARGET, ask=["encoder.0.self.weights"])
    with pytest.raises(SettingError, match=r"encoder\.0\.self"):
        run.weights("encoder.1.self")
    with pytest.raises(SettingError, match="row 99"):
        run.weights("encoder.0.self", rows=[99])
    with pytest.raises(SettingError, match="head 3"):
        run.weights("encoder.0.self", heads=[3])
    with pytest.raises(SettingError, match="was not recorded"):
        run["logits"]
    with pytest.raises(SettingError, match="head 7"):
        model.look(TEXT, off=[("encoder.0.self", 7)])
    with pytest.raises(SettingError, match="did you mean"):
        model.look(TEXT, off=[("encoder.0.sefl", 0)])
    with pytest.raises(SettingError, match="no target"):
        look(writer(), TEXT, target=TARGET)


def test_a_model_in_training_is_looked_at_without_dropout_and_goes_on() -> None:
    model = translator(dropout=0.5)
    model.model.train()
    one, two = (model.look(TEXT, target=TARGET, ask=["logits"])["logits"] for _ in range(2))
    assert (one == two).all()
    assert model.model.training
    assert model.model.encoder.blocks[0].training
    assert torch.is_grad_enabled()


def test_an_edit_is_seen_by_probes_downstream() -> None:
    model = writer()
    inputs = look(model, TEXT, ask=()).model_inputs
    probe = Probe(["decoder.1.residual"], {"decoder.1.residual": torch.zeros_like})
    logits = forward(model.model, inputs.named, probe)
    assert probe.tensors["decoder.1.residual"].abs().max() == 0
    assert logits.abs().max() == 0
