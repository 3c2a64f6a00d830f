"""Probes: what they show is what the mixers used, and looking changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from looked import BLOCK, SUBJECTS, TARGET, TEXT, UNFRAMED, WORDS, explicit, translator, writer
from regard import spec
from regard.build import build
from regard.core import softmax_attention
from regard.core.probe import Probe
from regard.errors import SettingError
from regard.look import Subject, Words, heads, look, probes, translate, written
from regard.look.target import attentions, run


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()


def test_weights_are_those_of_a_wholly_explicit_model(subject: Subject) -> None:
    found = look(subject, TEXT, target=TARGET if subject.target else None)
    fused = {name: found.weights(name) for name in found.probe.attentions}
    seen = explicit(subject.model)
    with torch.no_grad():
        run(subject.model, found.reading.inputs, found.reading.outputs)
    assert len(seen) == len(fused) > 1
    for (name, weights), mixed in zip(fused.items(), seen, strict=True):
        np.testing.assert_allclose(
            weights, mixed[0].detach().numpy(), rtol=1e-5, atol=1e-6, err_msg=name
        )
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
        left, right = found.labels(name)
        assert weights.shape[1:] == (len(left), len(right))


def test_some_rows_and_heads_are_those_of_all(subject: Subject) -> None:
    found = look(subject, TEXT, target=TARGET if subject.target else None)
    for name in found.probe.attentions:
        many = found.call(name).q.shape[1]
        some = found.weights(name, rows=[4, 0], heads=[many - 1, 1])
        np.testing.assert_allclose(some, found.weights(name)[[many - 1, 1]][:, [4, 0]], atol=1e-6)
        view = found.attention(name, rows=[4], heads=[1])
        assert view.rows == (found.labels(name)[0][4],)
        assert view.weights.shape == (1, 1, len(view.columns))


def test_looking_changes_nothing_and_gives_every_probe(subject: Subject) -> None:
    target = TARGET if subject.target else None
    nothing = look(subject, TEXT, target=target, ask=())
    assert nothing.names == []
    with torch.inference_mode():
        usual = run(subject.model, nothing.reading.inputs, nothing.reading.outputs)
    found = look(subject, TEXT, target=target, ask=["*"])
    assert found.names == probes(subject.model)
    assert torch.equal(found.tensor("logits"), usual)
    for name in found.names:
        assert np.isfinite(found[name]).all(), name
    one = look(subject, TEXT, target=target, ask=[found.names[1], "logits"])
    assert one.names == [found.names[1], "logits"]
    last = [name for name in found.names if name.endswith(".output")][-1]
    assert found[last].shape[-1] == 24


def test_looking_stays_on_the_fused_path(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, calls = translator().subject(), []
    usual = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *a, **k: calls.append(1) or usual(*a, **k),
    )
    monkeypatch.setattr(
        softmax_attention,
        "attention_weights",
        lambda *a: pytest.fail("weights were computed before they were asked"),
    )
    look(subject, TEXT, target=TARGET, ask=["encoder.0.self.weights"])
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
    subject = SUBJECTS[kind]()
    length = 4096
    ids = torch.randint(4, len(WORDS), (1, length))
    with Largest() as largest:
        found = look(subject, ids, ask=["decoder.1.self.weights", "decoder.0.self.q"])
        weights = found.weights("decoder.1.self", rows=[4000, 17, 4095], heads=[2])
    assert weights.shape == (1, 3, length)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-4)
    assert weights[0, 1, 18:].max() == 0
    assert largest.numbers < length * length // 8


def test_an_encoder_decoder_translates_first() -> None:
    held = translator()
    found = held.look(TEXT, ask=["decoder.*.cross.weights"])
    assert found.source == (*WORDS.tokens(WORDS.encode(TEXT)), "</s>")
    assert WORDS.decode(WORDS.vocabulary[token] for token in found.target) == held.translate(TEXT)
    given = held.look(TEXT, target=TARGET)
    assert given.target == (*WORDS.tokens(WORDS.encode(TARGET)), "</s>")
    assert given.weights("decoder.0.cross").shape == (3, len(given.target), len(given.source))
    longer = held.look("He.", target=TARGET)
    assert len(longer.target) > len(longer.source)
    np.testing.assert_allclose(longer.weights("decoder.0.cross").sum(axis=-1), 1.0, atol=1e-5)


def test_heads_switched_off_are_zeroed_slices_of_the_output_projection(subject: Subject) -> None:
    """In the whole run, and step by step in decoding."""
    target = TARGET if subject.target else None
    off = [heads(subject.model)[1], heads(subject.model)[-1]]
    edited = look(subject, TEXT, target=target, ask=["logits"], off=off)["logits"]
    plain = look(subject, TEXT, target=target, ask=["logits"])["logits"]
    decoded = translate(subject, TEXT, off=off)[0] if subject.ends else None
    with torch.no_grad():
        for name, head in off:
            part = attentions(subject.model)[name]
            part.output.weight.unflatten(1, (part.project.heads, -1))[:, head] = 0
    np.testing.assert_allclose(
        edited, look(subject, TEXT, target=target, ask=["logits"])["logits"], rtol=1e-4, atol=1e-5
    )
    assert not np.allclose(edited, plain, atol=1e-3)
    if decoded is not None:
        again = translate(subject, TEXT)[0]
        assert decoded.tokens == again.tokens
        assert decoded.score == pytest.approx(again.score, rel=1e-4)
        assert isinstance(written(subject, decoded), str)


def test_tensors_of_other_front_ends() -> None:
    image = spec.Patches(size=8, patch=4)
    model = build(
        spec.Encoder(24, image, spec.Stack(1, BLOCK), spec.Pool(), labels=spec.ClassifierHead(3))
    ).eval()
    found = look(Subject(model), torch.randn(1, 3, 8, 8), ask=["*"])
    assert found.source == ("extra 0", "0,0", "0,1", "1,0", "1,1")
    assert found.attention("encoder.0.self").weights.shape == (4, 5, 5)
    sound = spec.Spectrogram(3, spec.Sinusoidal())
    model = build(spec.Encoder(24, sound, spec.Stack(1, BLOCK))).eval()
    assert look(Subject(model), torch.randn(1, 3, 10)).source == ("0", "1", "2", "3", "4")
    with pytest.raises(SettingError, match="tokenizer"):
        look(Subject(model), "text")


def test_two_towers() -> None:
    tokens = spec.Tokens(len(WORDS), dropout=0.0)
    text = spec.Encoder(24, tokens, spec.Stack(1, BLOCK), spec.Pool(width=5))
    image = spec.Encoder(
        24, spec.Patches(size=8, patch=4), spec.Stack(1, BLOCK), spec.Pool(width=5)
    )
    subject = Subject(build(spec.DualEncoder(text, image)).eval(), Words.of(UNFRAMED))
    assert set(look(subject, TEXT).probe.attentions) == {"text.encoder.0.self"}
    assert set(look(subject, torch.randn(1, 3, 8, 8)).probe.attentions) == {"image.encoder.0.self"}


def test_errors_name_what_there_is() -> None:
    held = translator()
    with pytest.raises(SettingError, match=r"did you mean 'encoder.1.self.weights'"):
        held.look(TEXT, ask=["encoder.1.self.wieghts"])
    found = held.look(TEXT, target=TARGET, ask=["encoder.0.self.weights"])
    with pytest.raises(SettingError, match=r"encoder\.0\.self"):
        found.weights("encoder.1.self")
    with pytest.raises(SettingError, match="row 99"):
        found.weights("encoder.0.self", rows=[99])
    with pytest.raises(SettingError, match="head 3"):
        found.weights("encoder.0.self", heads=[3])
    with pytest.raises(SettingError, match="nothing was asked"):
        found["logits"]
    with pytest.raises(SettingError, match="no head 7"):
        held.look(TEXT, off=[("encoder.0.self", 7)])
    with pytest.raises(SettingError, match="did you mean"):
        held.look(TEXT, off=[("encoder.0.sefl", 0)])
    with pytest.raises(SettingError, match="no target"):
        look(writer(), TEXT, target=TARGET)


def test_a_model_in_training_is_looked_at_without_dropout_and_goes_on() -> None:
    held = translator(dropout=0.5)
    held.model.train()
    one, two = (held.look(TEXT, target=TARGET, ask=["logits"])["logits"] for _ in range(2))
    assert (one == two).all()
    assert held.model.training
    assert held.model.encoder.blocks[0].training
    assert torch.is_grad_enabled()


def test_an_edit_is_seen_by_probes_downstream() -> None:
    subject = writer()
    reading = look(subject, TEXT, ask=()).reading
    probe = Probe(["decoder.1.residual"], {"decoder.1.residual": torch.zeros_like})
    said = run(subject.model, reading.inputs, probe=probe)
    assert probe.tensors["decoder.1.residual"].abs().max() == 0
    assert said.abs().max() == 0
