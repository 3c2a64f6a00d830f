"""`model.tokens`: texts as the tensors that a call takes; and models made in memory are saved with
their tokenizers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import test_listener
import test_reader
import torch

import looked
import regard
from regard import build, spec
from regard.data.padding import IGNORED
from regard.data.text.ctc import CTCDecoder
from regard.data.text.tokenizer import Between
from regard.data.text.tokenizer_training import train_tokenizer
from regard.families.decoders import gpt2
from regard.families.folder import SpecialTokenIds
from regard.models import (
    CTCModel,
    LanguageModel,
    Model,
    SpeechToText,
    TextEncoder,
    Translator,
)
from regard.models.memory_network import MemoryNetworkModel
from regard.system.errors import DataError, SettingError

transformers = pytest.importorskip("transformers")

TEXTS = ["The dog sees a small cat.", "The cat sees a dog.", "The dog."]
TARGETS = ["Der Hund sieht eine kleine Katze.", "Die Katze sieht einen Hund.", "Der Hund."]


def language_model(positions: int = 32) -> LanguageModel:
    torch.manual_seed(0)
    description = gpt2.preset("tiny", len(looked.WORDS), positions)
    end = looked.WORDS.required_token_id("eos")
    return LanguageModel(
        build(description).eval(), description, looked.WORDS, {"eos_token_id": end}
    )


# ------------------------------------------------------------------ encoders


def test_tokens_of_an_encoder_are_those_of_transformers(tmp_path: Path) -> None:
    model = test_reader.reader(test_reader.folder(tmp_path, "ForSequenceClassification"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pairs = [("The fox runs.", "Who runs?"), ("dog", "The lazy dog jumps.")]
    for texts in (test_reader.TEXTS, pairs, [test_reader.TEXTS[0]]):
        expected = theirs(texts, padding=True, return_tensors="pt")
        batch = model.tokens(texts)
        assert batch.keys() == expected.keys()
        for name, tensor in batch.items():
            assert torch.equal(tensor, expected[name]), name
    assert torch.equal(model.tokens("dog")["input_ids"], model.tokens(["dog"])["input_ids"])
    # Two ways to the same logits: `classify` batches by itself.
    logits = model(**model.tokens(test_reader.TEXTS)).logits
    for row, scores in zip(logits, model.classify(test_reader.TEXTS), strict=True):
        ours = dict(zip(model.require_labels(), row.softmax(dim=-1).tolist(), strict=True))
        assert ours == pytest.approx(scores, abs=1e-5)


def test_truncation_is_refused_or_said(tmp_path: Path) -> None:
    model = test_reader.reader(test_reader.folder(tmp_path, "Model"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages: list[str] = []
    model.say = messages.append
    with pytest.raises(DataError, match=r"2 of 4 texts have more than the 9 tokens.*text 2, which"):
        model.tokens(test_reader.TEXTS, max_length=9)
    with pytest.raises(DataError, match="truncation=True"):
        model.tokens("fox " * 60)  # 40 positions
    assert not messages
    batch = model.tokens(test_reader.TEXTS, max_length=9, truncation=True)
    expected = theirs(
        test_reader.TEXTS, padding=True, truncation=True, max_length=9, return_tensors="pt"
    )
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert len(messages) == 1
    assert "2 of 4 texts" in messages[0]
    assert model.tokens(test_reader.TEXTS, max_length=100, truncation=True)
    assert len(messages) == 1  # nothing was cut off
    with pytest.raises(SettingError, match="takes no `targets`"):
        model.tokens("dog", targets="Hund")
    with pytest.raises(DataError, match="list of texts is empty"):
        model.tokens([])


# ------------------------------------------------------------------ language models


def test_tokens_of_a_language_model_give_its_perplexity() -> None:
    model = language_model()
    batch = model.tokens(TEXTS)
    assert batch.keys() == {"input_ids", "attention_mask"}
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    assert lengths == [len(model.tokenizer.input_ids(text)) for text in TEXTS]
    logits = model(**batch).logits[:, :-1].log_softmax(dim=-1)
    nll = -logits.gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    mask = batch["attention_mask"][:, 1:].bool()
    assert model.perplexity(TEXTS) == pytest.approx(math.exp(nll[mask].mean().item()), rel=1e-4)
    with pytest.raises(DataError, match="expected a string, not tuple"):
        model.tokens([("The dog", "sees")])
    with pytest.raises(DataError, match="the 4 tokens"):
        model.tokens(TEXTS, max_length=4)
    with pytest.raises(DataError, match="the 5 tokens"):
        language_model(positions=5).tokens(TEXTS)
    model.say = lambda text: None
    cut = model.tokens(TEXTS, max_length=4, truncation=True)
    assert torch.equal(cut["input_ids"][0], batch["input_ids"][0, :4])


def test_a_prompt_has_no_end_token() -> None:
    """Whatever the tokenizer was made for: a translator's puts an end token behind a source."""
    words = looked.WORDS
    assert words.input_ids("The dog")[-1] == words.required_token_id("eos")
    assert language_model().tokenizer.input_ids("The dog") == words.encode("The dog")
    bos = words.required_token_id("bos")
    framed = words.with_framing(Between((bos,), (words.required_token_id("eos"),)))
    assert framed.for_prompts().input_ids("The dog") == [bos, *words.encode("The dog")]


# ------------------------------------------------------------------ encoder–decoders


def test_tokens_with_targets_give_the_loss() -> None:
    model = looked.translator()
    assert model.tokens(TEXTS).keys() == {"input_ids", "attention_mask"}
    batch = model.tokens(TEXTS, targets=TARGETS)
    assert list(batch) == ["input_ids", "attention_mask", "decoder_input_ids", "labels"]
    labels = batch["labels"]
    end = looked.WORDS.required_token_id("eos")
    for row, target in zip(labels, TARGETS, strict=True):
        assert row[row != IGNORED].tolist() == [*looked.WORDS.encode(target), end]
    assert (batch["decoder_input_ids"][:, 0] == model.start).all()
    # The decoder reads what it has to predict one position later.
    followed = labels[:, 1:] != IGNORED
    assert torch.equal(batch["decoder_input_ids"][:, 1:][followed], labels[:, :-1][followed])
    output = model(**batch)
    assert list(output)[:2] == ["loss", "logits"]
    assert math.exp(output.loss.item()) == pytest.approx(model.perplexity(TEXTS, TARGETS), rel=1e-4)
    with pytest.raises(DataError, match="1 targets for 3 sources"):
        model.tokens(TEXTS, targets=TARGETS[0])
    with pytest.raises(DataError, match="more than the 6 tokens"):
        model.tokens("The dog.", 6, targets=TARGETS[0])
    messages: list[str] = []
    model.say = messages.append
    cut = model.tokens(TEXTS, 6, targets=TARGETS, truncation=True)
    assert cut["input_ids"].shape[1] == cut["labels"].shape[1] == 6
    assert cut["input_ids"][0, -1] == cut["labels"][0, -1] == end  # the end token stays
    assert len(messages) == 2


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=40,
        d_model=12,
        d_kv=4,
        d_ff=20,
        num_layers=2,
        num_heads=3,
        decoder_start_token_id=0,
    )
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = regard.load(tmp_path, say=lambda text: None)
    labels = torch.randint(2, 40, (3, 7))
    labels[1, 4:] = IGNORED
    source = torch.randint(2, 40, (3, 5))
    expected = theirs(input_ids=source, labels=labels)
    shifted = torch.nn.functional.pad(labels, (1, -1)).clamp_min(0)
    output = ours(input_ids=source, decoder_input_ids=shifted, labels=labels)
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(output.logits, expected.logits)


# ------------------------------------------------------------------ other models


def memory_network() -> MemoryNetworkModel:
    torch.manual_seed(0)
    words = train_tokenizer(["Mary went to the kitchen", "Where is Mary"], "words", 50)
    words = words.with_framing(Between())
    description = spec.MemoryNetwork(8, len(words))
    return MemoryNetworkModel(build(description), description, words)


def test_tokens_of_stories() -> None:
    model = memory_network()
    text = "Mary went to the kitchen. Mary went. Where is Mary?"
    batch = model.tokens([text, "Mary went. Where is Mary?"])
    assert batch.keys() == {"story", "question", "story_mask", "question_mask"}
    probabilities = model(**batch).logits[0].softmax(dim=-1)
    scores = model.answer("Where is Mary?", "Mary went to the kitchen. Mary went.")
    word = next(iter(scores))
    index = model.tokenizer.token_to_id(word)
    assert index is not None
    assert probabilities[index].item() == pytest.approx(scores[word], abs=1e-5)
    assert scores.keys().isdisjoint(model.tokenizer.special_tokens.values())


def test_a_model_without_a_tokenizer_says_so() -> None:
    description = gpt2.preset("tiny", 20, 8)
    with pytest.raises(SettingError, match="no tokenizer"):
        Model(build(description), description).tokens("The dog")


# ------------------------------------------------------------------ saved with their tokenizers


def reopened(model: Model, place: Path) -> Any:
    model.save(place)
    return regard.load(place, say=lambda text: None)


def test_a_language_model_is_saved_with_its_tokenizer(tmp_path: Path) -> None:
    model = language_model()
    again = reopened(model, tmp_path)
    assert type(again) is LanguageModel
    assert again.generate("The dog", max_new_tokens=8) == model.generate(
        "The dog", max_new_tokens=8
    )
    assert torch.equal(again.tokens(TEXTS)["input_ids"], model.tokens(TEXTS)["input_ids"])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("The dog", add_special_tokens=False)["input_ids"] == model.tokenizer.input_ids(
        "The dog"
    )


def test_every_other_model_made_in_memory_is_saved_with_its_tokenizer(tmp_path: Path) -> None:
    translator = looked.translator()
    again = reopened(translator, tmp_path / "translator")
    assert type(again) is Translator
    assert again.translate(TEXTS) == translator.translate(TEXTS)

    network = memory_network()
    again = reopened(network, tmp_path / "memory")
    story = "Mary went to the kitchen."
    assert again.answer("Where is Mary?", story) == pytest.approx(
        network.answer("Where is Mary?", story), abs=1e-5
    )

    description = looked.reader().spec
    assert isinstance(description, spec.Encoder)
    encoder = TextEncoder(build(description).eval(), description, looked.UNFRAMED)
    again = reopened(encoder, tmp_path / "encoder")
    torch.testing.assert_close(again.embed(TEXTS), encoder.embed(TEXTS))


def test_speech_models_made_in_memory_are_saved_with_their_tokenizers(tmp_path: Path) -> None:
    test_listener.whisper(tmp_path / "whisper")
    first = regard.load(tmp_path / "whisper", say=lambda text: None)
    assert isinstance(first, SpeechToText)
    ids = SpecialTokenIds(test_listener.END, test_listener.BEGIN, test_listener.END, None)
    made = SpeechToText(first.model, first.spec, ids, first.tokenizer)
    again = reopened(made, tmp_path / "again")
    assert type(again) is SpeechToText
    assert again.ids == ids
    assert again.tokenizer.same_vocabulary(first.tokenizer)

    letters = CTCDecoder({0: "<pad>", 1: "<s>", 2: "</s>", 3: "|", 4: "A", 5: "B"}, 0, lower=True)
    heard = [0, 4, 4, 0, 4, 5, 5, 3, 2, 4]
    assert letters.frames(heard) == [1, 4, 5, 7, 9]  # a letter begins after a blank, or another
    assert "".join(letters.names[heard[frame]] for frame in letters.frames(heard)) == "AAB|A"
    assert letters.text(heard) == "aab a"
    waveform = spec.Waveform((spec.Convolution(6, 10, 5),), spec.ConvPosition(4, 2))
    block = spec.Block(spec.Attention(2, 4, 4), spec.FeedForward(9))
    labels = spec.ClassifierHead(6, "transcribe")
    description = spec.Encoder(8, waveform, spec.Stack.of(1, block), (labels,))
    speech = CTCModel(build(description).eval(), description, letters)
    again = reopened(speech, tmp_path / "ctc")
    assert type(again) is CTCModel
    assert again.decoder == letters
