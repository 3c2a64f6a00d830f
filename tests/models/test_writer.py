"""The language model a user holds: what it writes, what it says of texts, and how that compares with transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.data.text.tokenizer_training import SpecialTokenTemplate, train_lossless_tokenizer
from regard.decode.batch_decoding import DecodingSettings, decode
from regard.decode.strategy import BeamSearch, Greedy, PowerPenalty, Sampling
from regard.models import LanguageModel
from regard.system.errors import DataError, SettingError

transformers = pytest.importorskip("transformers")

TEXT = "The dog sees a cat. The cat sees a bird; naïve 😀 birds sing.\n" * 4
CONFIGS: dict[str, Any] = {
    "gpt2": lambda n: transformers.GPT2Config(vocab_size=n, n_positions=24, n_embd=32, n_layer=2, n_head=4),
    "llama": lambda n: transformers.LlamaConfig(
        vocab_size=n, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with sharp predictions, and a tokenizer without padding or start, as GPT-2's."""
    place = tmp_path_factory.mktemp(request.param)
    words = train_lossless_tokenizer([TEXT], "bpe", 300, SpecialTokenTemplate(("<|endoftext|>",)))
    torch.manual_seed(3)
    config = CONFIGS[request.param](len(words))
    config.bos_token_id = config.eos_token_id = words.special_token_id("eos")
    config.pad_token_id = None
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(place)
    (place / "tokenizer.json").write_text(words.to_json())
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    found = regard.load(folder)
    assert isinstance(found, LanguageModel)
    return found


def test_it_answers_as_transformers_does(folder: Path, model: LanguageModel) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([[5, 6, 7, 8, 9], [1, 2, 3, 0, 0]])
    padding_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=padding_mask).logits
    found = model(input_ids=ids, attention_mask=padding_mask).logits
    seen = padding_mask.bool()
    assert (found - expected)[seen].abs().max() <= 1e-5 * max(1.0, expected.abs().mean())
    prompt = model.tokenizer.encode("The dog")
    out = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    tokens = out[0, len(prompt) :].tolist()
    stop = (
        tokens.index(model.special_tokens.end)
        if model.special_tokens.end in tokens
        else len(tokens)
    )
    assert model.generate("The dog", max_new_tokens=12) == model.tokenizer.decode(tokens[:stop])
    with torch.inference_mode():
        loss = theirs(input_ids=torch.tensor([prompt]), labels=torch.tensor([prompt])).loss.item()
    assert model.perplexity("The dog") == pytest.approx(math.exp(loss), rel=1e-4)


@pytest.mark.parametrize(
    "strategy", [Greedy(), Sampling(seed=4), Sampling(0.7, top_k=9, seed=1), BeamSearch(3)]
)
def test_streamed_is_whole_and_batched_is_single(model: LanguageModel, strategy: Any) -> None:
    """Beyond the 24 positions that GPT-2 has here, too."""
    told: list[str] = []
    whole = model.generate("The dog", strategy, max_new_tokens=60, stream=told.append)
    assert "".join(told) == whole
    assert whole == model.generate("The dog", strategy, max_new_tokens=60)
    if not isinstance(strategy, BeamSearch):
        assert len(told) > 2
    together = model.generate(["The dog", "A", "The cat sees a bird"], strategy, max_new_tokens=40)
    assert together[0] == model.generate("The dog", strategy, max_new_tokens=40)
    if not isinstance(strategy, Sampling):  # what is drawn belongs to a text's place in the list
        assert together[1:] == [
            model.generate(t, strategy, max_new_tokens=40) for t in ("A", "The cat sees a bird")
        ]


STRATEGIES = [Greedy(), Sampling(seed=4), BeamSearch(3)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_text_ends_before_a_stop(model: LanguageModel, strategy: Any) -> None:
    """Stops of several tokens and within one; the context of GPT-2 is full on the way."""
    prompts = ["The dog", "A bird", "The cat sees a bird"]
    free = model.generate(prompts, strategy, max_new_tokens=40)
    for start, end in ((0, 1), (3, 4), (4, 9), (20, 22)):
        stop = free[0][start:end] or "?"
        told: list[str] = []
        found = model.generate(
            prompts[0], strategy, max_new_tokens=40, stop=stop, stream=told.append
        )
        assert "".join(told) == found
        assert stop not in found
        if not isinstance(strategy, BeamSearch):  # a beam looks elsewhere for a better one
            assert found == free[0].partition(stop)[0]
            many = model.generate(prompts, strategy, max_new_tokens=40, stop=["\x00", stop])
            assert many == [text.partition(stop)[0] for text in free]
    assert model.generate(prompts, strategy, max_new_tokens=40, stop=["\x00"]) == free
    with pytest.raises(SettingError, match="no text"):
        model.generate("A", stop=[""])


def test_decoding_ends_at_a_stop(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    free = model.generate("The dog", max_new_tokens=17)
    steps: list[int] = []
    step = model.model.step
    monkeypatch.setattr(model.model, "step", lambda *a, **k: steps.append(1) or step(*a, **k))
    monkeypatch.setattr("regard.decode.fused_step.step", lambda m, *a: model.model.step(*a))
    for drafted in (None, model):
        steps.clear()
        model.generate("The dog", max_new_tokens=40, stop=free[0], draft=drafted)
        assert 1 <= len(steps) <= 15


def test_several_continuations(folder: Path, model: LanguageModel) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = ["The dog", "A bird sees"]
    refilled = BeamSearch(4, PowerPenalty(1.0), slots="refilled", stop="likely")
    found = model.generate(prompts, refilled, max_new_tokens=9, num_return_sequences=3)
    for prompt, texts in zip(prompts, found, strict=True):
        ids = torch.tensor([model.tokenizer.input_ids(prompt)])
        settings = {"num_beams": 4, "num_return_sequences": 3, "do_sample": False}
        rows = theirs.generate(ids, max_new_tokens=9, pad_token_id=0, **settings)[:, ids.shape[1] :]
        assert texts == [model.tokenizer.decode(row.tolist()) for row in rows]
    one = model.generate(prompts[1], num_beams=4, max_new_tokens=40, num_return_sequences=2)
    assert len(set(one)) == 2
    drawn = model.generate(
        prompts, temperature=1.0, seed=2, max_new_tokens=30, num_return_sequences=3
    )
    assert [len(set(texts)) for texts in drawn] == [3, 3]
    assert drawn[0][0] == model.generate(prompts[0], temperature=1.0, seed=2, max_new_tokens=30)
    later = model.generate(
        prompts[1],
        temperature=1.0,
        seed=2,
        max_new_tokens=30,
        num_return_sequences=3,
        first_index=1,
    )
    assert later == drawn[1]
    with pytest.raises(SettingError, match="greedy"):
        model.generate("A", num_return_sequences=2)
    with pytest.raises(SettingError, match="one continuation"):
        model.generate("A", beam=2, num_return_sequences=2, stream=print)


def test_repetition_penalty(folder: Path, model: LanguageModel) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    prompts = ["The dog", "A bird sees"]
    found = model.generate(prompts, max_new_tokens=9, repetition_penalty=1.5)
    for prompt, text in zip(prompts, found, strict=True):
        ids = torch.tensor([model.tokenizer.input_ids(prompt)])
        settings: dict[str, Any] = {
            "repetition_penalty": 1.5,
            "do_sample": False,
            "pad_token_id": 0,
        }
        [row] = theirs.generate(ids, max_new_tokens=9, **settings)[:, ids.shape[1] :].tolist()
        assert text == model.tokenizer.decode(row)
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(SettingError, match="repetition_penalty"):
            model.generate("A", repetition_penalty=wrong)


@pytest.mark.parametrize("streamed", [False, True])
def test_no_step_is_watched(
    model: LanguageModel, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback inside each step would rule out CUDA graphs, the fused step and CPU workers."""
    calls: list[tuple[DecodingSettings, Any]] = []

    def recorded(core: Any, sources: Any, special: Any, settings: Any, **options: Any) -> Any:
        calls.append((settings, options.get("on_step")))
        return decode(core, sources, special, settings, **options)

    monkeypatch.setattr("regard.models.language_model.decode", recorded)
    model.generate("The dog", max_new_tokens=3, stream=(lambda _: None) if streamed else None)
    for settings, on_step in calls:
        assert on_step is None
        assert (settings.stream is not None) == streamed


def test_it_goes_on_from_what_it_can_see(model: LanguageModel) -> None:
    """Past the last position a piece begins from the last half of them; by hand, token by token, without a cache."""
    if model.positions is None:
        pytest.skip("no limit")
    ids = model.tokenizer.input_ids("The dog sees a cat. The cat sees")
    expected: list[int] = []
    seen = list(ids)
    while len(expected) < 50:
        seen = seen[-12:] if len(seen) > 24 or (len(seen) == 24 and not expected) else seen
        token = int(model(torch.tensor([seen])).logits[0, -1].argmax())
        if token == model.special_tokens.end:
            break
        expected.append(token)
        seen = [*seen, token]
    found = model.generate("The dog sees a cat. The cat sees", max_new_tokens=50)
    assert (
        found
        == model.tokenizer.decode([*ids, *expected])[len("The dog sees a cat. The cat sees") :]
    )


def test_end_tokens_end(folder: Path, model: LanguageModel) -> None:
    """Whatever token comes third, made an end token, ends the text before it; several may."""
    ids = model.tokenizer.input_ids("The dog")
    tokens: list[int] = []
    for _ in range(4):
        tokens.append(int(model(torch.tensor([ids + tokens])).logits[0, -1].argmax()))
    third = tokens[2]
    for end in (third, [0, third]):
        other = LanguageModel(model.model, model.spec, model.tokenizer, {"eos_token_id": end})
        expected = tokens[: tokens.index(third)]
        for strategy in (Greedy(), BeamSearch(1)):
            assert other.generate("The dog", strategy, max_new_tokens=9) == model.tokenizer.decode(
                expected
            )
    none = LanguageModel(model.model, model.spec, model.tokenizer, {})
    growing = none.generate("The dog", Sampling(seed=2), max_new_tokens=30)
    assert growing
    with pytest.raises(DataError, match="prompt"):
        none.generate("")
    assert isinstance(
        model.generate("", max_new_tokens=3), str
    )  # begins with the token that ends texts
    said = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(said | {"eos_token_id": [7, 8]}))
    opened: Any = regard.load(folder)
    assert opened.special_tokens.extra_ends == (8,)
    (folder / "generation_config.json").write_text(json.dumps(said))


def test_surprise_adds_up(model: LanguageModel) -> None:
    texts = ["The dog sees a cat.", "naïve 😀", "a"]
    total, count = model.nll(texts)
    parts = [model.nll(text) for text in texts]
    assert total == pytest.approx(sum(part for part, _ in parts), rel=1e-5)
    assert count == sum(len(model.tokenizer.encode(text)) - 1 for text in texts)
    long_total, long_count = model.nll(TEXT)
    assert long_count == len(model.tokenizer.encode(TEXT)) - 1
    assert math.isfinite(long_total)


def test_classes_by_prompt(model: LanguageModel) -> None:
    labels = ["cat", "cats", "bird"]
    template = "{text} {label}\n"
    found = model.classify("The", labels, template=template)
    assert sum(found.values()) == pytest.approx(1.0)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    scores = {label: -model.nll(f"The {label}\n")[0] for label in labels}
    norm = math.log(sum(math.exp(score) for score in scores.values()))
    for label, score in scores.items():
        assert found[label] == pytest.approx(math.exp(score - norm), rel=1e-4)
    few = model.classify(["The", "A {label}"], ["x", "y"], [("a", "x")], "{text}={label};")
    assert len(few) == 2
    one, other = (-model.nll(f"a=x;The={label};")[0] for label in "xy")
    assert few[0]["x"] == pytest.approx(1 / (1 + math.exp(other - one)), rel=1e-4)


def test_mistakes_are_answered(folder: Path, model: LanguageModel, tmp_path: Path) -> None:
    for labels, template in (
        (["a"], "{text} {label}"),
        (["a", "a"], "{text} {label}"),
        (["a", "b"], "{text}"),
    ):
        with pytest.raises(SettingError):
            model.classify("x", labels, template=template)
    with pytest.raises(SettingError, match="one text"):
        model.generate(["a", "b"], stream=print)
    with pytest.raises(SettingError, match="max_new_tokens"):
        model.generate("a", max_new_tokens=0)
    if model.positions is not None:
        with pytest.raises(DataError, match="examples"):
            model.classify("x", ["a", "b"], [("dog", "a")] * 20)
    for path in folder.iterdir():
        if path.name != "tokenizer.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    bare: Any = regard.load(tmp_path)
    assert bare(input_ids=torch.tensor([[1, 2]])).logits.shape[:2] == (1, 2)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        bare.generate("a")
