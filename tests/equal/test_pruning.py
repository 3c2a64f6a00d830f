"""Heads taken out: the same answers as with heads switched off, an ordinary model of fewer parameters, heads in their order."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

import regard
from looked import TARGET, TEXT, sharpened, translator
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.cli.prune import command
from regard.core.context import Context
from regard.core.probe import Probe
from regard.data.generated import builtin
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch
from regard.lab.show.modules import summarize
from regard.look import ablation, batch, importance, translate, written
from regard.look.forward import forward, named_inputs
from regard.look.head_importance import Importance
from regard.look.probe_names import Head, attentions, switched_off
from regard.models import Model
from regard.models.head_pruning import choose_heads, prunable_attentions, prune_heads
from regard.system.errors import SettingError
from regard.training.recipe import loading
from regard.training.run import run as trained
from regard.training.run_folder import begin
from seeds import SEEDS

HEADS = spec.Attention(4, 6, 5)
LAYER = spec.Block(HEADS, spec.FeedForward(20), residual=spec.PreNorm(), dropout=0.0)


def decoder(stack: spec.Stack, position: spec.InputPosition | None = None) -> spec.Decoder:
    return spec.Decoder(24, spec.Tokens(31, position, dropout=0.0), stack)


def with_attention(**changes: Any) -> spec.Block:
    return replace(LAYER, attention=replace(HEADS, **changes))


def sequence(**changes: Any) -> spec.EncoderDecoder:
    stack = spec.Stack.of(
        2, replace(LAYER, cross=replace(HEADS, bias="qv")), spec.CausalMask(), **changes
    )
    tokens = spec.Tokens(31, dropout=0.0)
    return spec.EncoderDecoder(24, tokens, tokens, spec.Stack.of(3, LAYER, **changes), stack)


def encoder(stack: spec.Stack) -> spec.Encoder:
    return spec.Encoder(24, spec.Tokens(31, dropout=0.0), stack, heads=(spec.LMHead(),))


CAUSAL = spec.CausalMask()
MODELS: dict[str, spec.Model] = {
    "positions at the input": decoder(spec.Stack.of(3, LAYER, CAUSAL), spec.LearnedPosition(20)),
    "rope": decoder(spec.Stack.of(2, LAYER, CAUSAL, spec.Rope())),
    "relative keys": decoder(spec.Stack.of(2, LAYER, CAUSAL, spec.RelativeKeys(3))),
    "relative sinusoids": decoder(spec.Stack.of(2, with_attention(d_v=6), CAUSAL, spec.RelativeSinusoids())),
    "one key for all": decoder(spec.Stack.of(2, with_attention(groups=1), CAUSAL)),
    "some biases": decoder(spec.Stack.of(2, with_attention(bias="kv"), CAUSAL)),
    "window": decoder(spec.Stack.of(2, LAYER, spec.CausalMask(3))),
    "elu": decoder(spec.Stack.of(2, with_attention(mixer=spec.LinearAttention()), CAUSAL)),
    "favor": decoder(spec.Stack.of(2, with_attention(mixer=spec.LinearAttention(spec.FavorFeatures(7))), CAUSAL)),
    "parallel": decoder(spec.Stack.of(2, replace(LAYER, residual=spec.Parallel(1)), CAUSAL)),
    "reversible": decoder(spec.Stack.of(2, LAYER, CAUSAL, scheme=spec.Reversible())),
    "distances": encoder(spec.Stack.of(2, with_attention(d_v=6), position=spec.Disentangled(5))),
    "shared": encoder(spec.Stack.of(3, LAYER, scheme=spec.Shared())),
    "both sides": sequence(),
    "buckets, cross only": sequence(position=spec.T5Bias(8, 10)),
}  # fmt: skip


def made(description: spec.Model, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = build(description).eval()
    sharpened(model)
    return Model(
        model, description, {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    )


def some(held: Model, seed: int) -> list[Head]:
    """Chance takes from each attention none to all but one."""
    chance = random.Random(seed)
    return [
        (name, head) for name, count in prunable_attentions(held).items() for head in chance.sample(range(count), chance.randrange(count))
    ]  # fmt: skip


def everywhere(held: Model, off: list[Head]) -> list[Head]:
    """The same heads in all layers that apply their block."""
    parts = attentions(held.model)  # type: ignore[arg-type]
    return [
        (other, head) for name, head in off for other, part in parts.items() if part is parts[name]
    ]


def said(held: Model, off: list[Head] | None = None) -> Tensor:
    torch.manual_seed(5)
    tokens, padding_mask = torch.randint(31, (2, 9)), torch.arange(9) < torch.tensor([[9], [6]])
    outputs = torch.randint(31, (2, 7)) if isinstance(held.spec, spec.EncoderDecoder) else None
    probe = Probe(edits=switched_off(held.model, off or []))  # type: ignore[arg-type]
    named = named_inputs(held.model, tokens, outputs, padding_mask)  # type: ignore[arg-type]
    with torch.inference_mode():
        found = forward(held.model, named, probe)  # type: ignore[arg-type]
    return found * padding_mask[..., None] if outputs is None and found.ndim == 3 else found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MODELS)
def test_pruned_is_switched_off(name: str, seed: int) -> None:
    held = made(MODELS[name], seed)
    off = some(held, seed)
    fewer = prune_heads(held, off)
    wanted = said(held, everywhere(held, off))
    assert (said(fewer) - wanted).abs().max() <= 1e-5 * max(1.0, wanted.abs().mean().item())
    assert trainable(fewer.model) == parameter_count(fewer.spec)
    assert [heads for _, heads in prunable_attentions(fewer).items()] == [
        heads - sum(one == which for one, _ in off)
        for which, heads in prunable_attentions(held).items()
    ]


@pytest.mark.parametrize("name", MODELS)
def test_a_pruned_model_is_an_ordinary_one(name: str, tmp_path: Path) -> None:
    """What its spec builds has the same parts; it is written, opened, described, and pruned once more."""
    held = made(MODELS[name])
    before = {n: p.clone() for n, p in held.model.named_parameters()}
    fewer = prune_heads(held, some(held, 1))
    again = build(fewer.spec)
    assert {n: p.shape for n, p in again.named_parameters()} == {
        n: p.shape for n, p in fewer.model.named_parameters()
    }
    assert all(torch.equal(p, before[n]) for n, p in held.model.named_parameters())
    assert spec.from_dict(json.loads(json.dumps(spec.to_dict(fewer.spec)))) == fewer.spec
    fewer.save(tmp_path / "fewer")
    opened = regard.load(tmp_path / "fewer", say=lambda text: None)
    assert opened.spec == fewer.spec
    assert torch.equal(said(opened), said(fewer))
    counted = sum(module.parameters for module in summarize(fewer.spec))
    assert counted == parameter_count(fewer.spec)
    off = some(fewer, 2)
    wanted = said(fewer, everywhere(fewer, off))
    assert (said(prune_heads(fewer, off)) - wanted).abs().max() <= 1e-5 * max(
        1.0, wanted.abs().mean().item()
    )


@pytest.mark.parametrize(
    "family", ["marian", "bart", "gpt2", "bert, classes", "albert", "deberta", "clip"]
)
def test_folders_of_other_libraries_are_pruned(family: str, tmp_path: Path) -> None:
    """No family can say such a model: it is written in our own format, with its labels and tokens."""
    pytest.importorskip("transformers")
    from zoo import save

    save(family, tmp_path / "whole")
    held = regard.load(tmp_path / "whole", device="cpu", say=lambda text: None)
    off = some(held, 3)
    prune_heads(held, off).save(tmp_path / "fewer")
    fewer = regard.load(tmp_path / "fewer", device="cpu", say=lambda text: None)
    assert fewer.config["model_type"] == "regard"
    assert type(fewer) is type(held)
    assert fewer.config.get("id2label") == held.config.get("id2label")
    wanted = said(held, everywhere(held, off))
    assert (said(fewer) - wanted).abs().max() <= 1e-5 * max(1.0, wanted.abs().mean().item())


def test_nothing_pruned_is_nothing_changed() -> None:
    held = made(MODELS["both sides"])
    same = prune_heads(held, [])
    assert same.spec == held.spec
    assert all(
        torch.equal(a, b)
        for a, b in zip(same.model.parameters(), held.model.parameters(), strict=True)
    )


def test_equally_many_heads_are_one_block() -> None:
    held = made(MODELS["rope"])
    fewer = prune_heads(held, [("decoder.0.self", 1), ("decoder.1.self", 3)])
    assert isinstance(fewer.spec, spec.Decoder)
    assert fewer.spec.stack.block.attention.heads == 3
    assert fewer.spec == decoder(spec.Stack.of(2, with_attention(heads=3), CAUSAL, spec.Rope()))
    assert fewer.spec.kv_cache_size == 2 * 3 * (6 + 5)
    uneven = prune_heads(held, [("decoder.1.self", 3)])
    assert uneven.spec.kv_cache_size == (4 + 3) * (6 + 5)


def test_tokens_that_see_everything_lose_heads_too() -> None:
    block = with_attention(projection="global")
    held = made(encoder(spec.Stack.of(2, block, spec.WindowMask(2))))
    fewer = prune_heads(held, [("encoder.0.self", 2)])
    tokens, glob = torch.randint(31, (1, 9)), torch.zeros(1, 9, dtype=torch.bool)
    glob[0, 3] = True
    probe = Probe(edits=switched_off(held.model, [("encoder.0.self", 2)]))  # type: ignore[arg-type]
    with torch.inference_mode():
        wanted = held.model(tokens, context=Context(global_tokens=glob, probe=probe))[0]
        found = fewer.model(tokens, context=Context(global_tokens=glob))[0]
    assert (found - wanted).abs().max() <= 1e-5
    assert trainable(fewer.model) == parameter_count(fewer.spec)


@pytest.mark.parametrize("beams", [1, 3])
def test_decoding_with_a_cache_is_the_same(beams: int) -> None:
    held = translator(heads=4)
    off = some(held, 4)
    settings = DecodingSettings(BeamSearch(beams))
    wanted = translate(held, TEXT, settings, off=off)
    found = translate(prune_heads(held, off), TEXT, settings)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert prune_heads(held, off).translate(TEXT, BeamSearch(beams)) == written(held, wanted[0])


# ------------------------------------------------------------------ importance


def test_importance_is_the_gradient_of_gates() -> None:
    held = translator(heads=4)
    data = batch(held, [TEXT, "The cat sees."], [TARGET, "Die Katze sieht."])
    gates: dict[str, Tensor] = {}

    def gated(name: str) -> Any:
        def edit(mixed: Tensor) -> Tensor:
            gates[name] = torch.ones(*mixed.shape[:3], 1, requires_grad=True)
            return mixed * gates[name]

        return edit

    probe = Probe(edits={f"{name}.mixed": gated(name) for name in attentions(held.model)})
    scores = forward(held.model, data.named, probe)
    functional.cross_entropy(
        scores.flatten(0, 1), data.labels.flatten(), ignore_index=-1, reduction="sum"
    ).backward()
    found = importance(held, [TEXT, "The cat sees."], [TARGET, "Die Katze sieht."])
    for name, values in zip(found.names, found.values, strict=True):
        gradient = gates[name].grad
        assert gradient is not None
        wanted = gradient[..., 0].abs().sum(dim=(0, 2))
        assert np.allclose(values, (wanted / wanted.norm()).numpy(), atol=1e-5)


def test_dimmed_heads_matter_less() -> None:
    """Heads of a random model dimmed by known factors: a head that hands on nothing has no importance at all, and the order
    of the estimate agrees with that of the loss without each head."""
    held = translator(heads=6, d_model=24, layers=1)
    factors = torch.tensor([1.0, 0.5, 0.0, 0.2, 0.8, 0.05])
    with torch.no_grad():
        for part in attentions(held.model).values():
            part.output.weight.mul_(factors.repeat_interleave(4))  # type: ignore[attr-defined]
    pairs = _pairs(24)
    texts, targets = [a for a, _ in pairs], [b for _, b in pairs]
    found, alone = importance(held, texts, targets), ablation(held, texts, targets)
    assert (found.values[:, 2] == 0).all()
    for row, effect in zip(found.values, alone.effect, strict=True):
        assert _ranked(row) @ _ranked(np.abs(effect)) > 0.5
        assert _ranked(row) @ _ranked(factors.numpy()) > 0.8
    assert {head for _, head in found.least(3)} == {2}


def _pairs(count: int) -> list[tuple[str, str]]:
    return [(s.source, s.target) for s in islice(builtin.sentences("train"), count)]


def _ranked(values: Any) -> Any:
    """Ranks of length 1 around 0: their product is Spearman's correlation."""
    ranks = np.argsort(np.argsort(values)).astype(float)
    ranks -= ranks.mean()
    return ranks / np.linalg.norm(ranks)


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    held, pairs = translator(), _pairs(7)
    texts, targets = [a for a, _ in pairs], [b for _, b in pairs]
    whole = importance(held, texts, targets).values
    monkeypatch.setattr("regard.look.head_importance.ROWS", 3)
    assert np.allclose(importance(held, texts, targets).values, whole, atol=1e-4)


def test_one_head_of_each_attention_stays() -> None:
    values = np.array([[0.1, 0.2, 0.3], [0.5, 0.4, np.nan]])
    found = Importance(("a", "b"), values)
    assert found.least(99) == [("a", 0), ("a", 1), ("b", 1)]
    assert found.least(1, lambda name: name == "b") == [("b", 1)]


# ------------------------------------------------------------------ what cannot be


def test_what_cannot_be_pruned() -> None:
    held = made(MODELS["rope"])
    with pytest.raises(SettingError, match="would be removed"):
        prune_heads(held, [("decoder.0.self", head) for head in range(4)])
    with pytest.raises(SettingError, match="no attention"):
        prune_heads(held, [("decoder.7.self", 0)])
    with pytest.raises(SettingError, match="head 4"):
        prune_heads(held, [("decoder.0.self", 4)])
    for block, position in (
        (with_attention(groups=2), None),
        (LAYER, spec.Alibi()),
        (LAYER, spec.T5Bias()),
    ):
        other = made(decoder(spec.Stack.of(2, block, CAUSAL, position)))
        assert prunable_attentions(other) == {}
        with pytest.raises(SettingError, match="cannot be removed from"):
            prune_heads(other, [("decoder.0.self", 0)])


@pytest.mark.parametrize("wanted", ["7", "-1", "88%", "some"])
def test_what_cannot_be_asked_for(wanted: str) -> None:
    held = made(MODELS["rope"])
    found = Importance(tuple(prunable_attentions(held)), np.ones((2, 4)))
    assert len(choose_heads(held, found, "6")) == len(choose_heads(held, found, "75%")) == 6
    with pytest.raises(SettingError):
        choose_heads(held, found, wanted)


# ------------------------------------------------------------------ the command

SMALL: dict[str, Any] = {
    "preset": "tiny", "d_model": 16, "d_ff": 24, "heads": 4, "layers": 2, "steps": 4, "batch_tokens": 256, "warmup_steps": 2,
    "threads": 1, "samples": 0, "save_every": 4, "validate_every": 4,
}  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    recipe = loading.load(None, SMALL | {"builtin_lines": 200, "tokenizer": "words"})
    place = begin(recipe, tmp_path / "run", "test")
    trained(place, recipe, "test", quiet=True)
    done = CliRunner().invoke(
        command, [str(place.folder), "--heads", "6", "--lines", "20"], catch_exceptions=False
    )
    assert done.exit_code == 0
    *_, head, whole, fewer = done.output.splitlines()
    assert [word for word in ("BLEU", "parameters", "tokens/s") if word not in head] == []
    assert whole.startswith(str(place.folder))
    assert fewer.startswith(f"{place.folder}-pruned")
    held = regard.load(tmp_path / "run-pruned")
    assert isinstance(held, regard.Translator)
    assert sum(prunable_attentions(held).values()) == 6 * 4 - 6
    held.translate("The dog sees a cat.")
    data = tmp_path / "train.tsv"
    data.write_text("".join(f"{a}\t{b}\n" for a, b in _pairs(40)))
    regard.finetune(
        tmp_path / "run-pruned",
        "translate",
        data,
        out=tmp_path / "again",
        epochs=1,
        quiet=True,
        threads=1,
    )
    again = regard.load(tmp_path / "again")
    assert again.spec == held.spec
    before, after = (
        load_file(tmp_path / name / "model.safetensors") for name in ("run-pruned", "again")
    )
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_command_for_a_language_model(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(a + "\n" for a, _ in _pairs(60)))
    settings = {
        "objective": "causal",
        "text": str(text),
        "context": 16,
        "tokenizer": "characters",
        "schedule": "cosine",
    }
    recipe = loading.load(None, SMALL | settings | {"learning_rate": 0.01})
    place = begin(recipe, tmp_path / "run", "test")
    trained(place, recipe, "test", quiet=True)
    asked = [str(place.folder), "--heads", "25%", "--lines", "5", "--json"]
    for more in ([], ["--text", str(text), "--out", str(tmp_path / "fewer")]):
        done = CliRunner().invoke(command, [*asked, *more], catch_exceptions=False)
        report = json.loads(done.stdout)
        assert len(report["removed"]) == 2
        whole, fewer = report["models"].values()
        assert fewer["parameters"] < whole["parameters"]
    with pytest.raises(SettingError, match="one text"):
        out = str(tmp_path / "other")
        CliRunner().invoke(command, [*asked, "--pairs", "x", "--out", out], catch_exceptions=False)
