"""Unknown words, and sources beyond the trained lengths, are warned of."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

import looked
import regard
from command_line import Command
from regard import build, spec
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import (
    SpecialTokenTemplate,
    train_lossless_tokenizer,
    train_tokenizer,
)
from regard.data.training_coverage import FILE, merged, read_coverage, row_statistics
from regard.families.presets import preset
from regard.models import TextEncoder, Translator
from regard.models.inputs.input_warnings import unknown_words
from regard.models.memory_network import MemoryNetworkModel
from regard.system.errors import LongInputWarning, UnknownWordsWarning

TEXTS = [f"The dog {i} sees a cat, läuft {i} Straßen." for i in range(50)]
UNSEEN = ["Hello world", "日本語 and дом", "👍🏽 naïve", "x<0x0A>y ▁", "the dogs"]


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return regard.load(trained, regard.Translator)


def test_unknown_words_are_named_once_on_standard_error(command: Command, trained: Path) -> None:
    done = command("translate", trained, text="Hello world\nHello again\n")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 2
    assert done.err.count("warning:") == 1
    assert "Hello, world" in done.err


def test_known_words_are_no_cause_for_a_warning(
    command: Command, trained: Path, files: Path
) -> None:
    first = (files / "s.en").read_text().splitlines()[0]
    done = command("translate", trained, text=first + "\n")
    assert (done.code, done.err) == (0, "")


def test_python_warns_with_the_words(translator: Translator) -> None:
    with pytest.warns(UnknownWordsWarning) as caught:
        translator.translate("The xylophone, sees a Zwetschge.")
    [warning] = [one.message for one in caught if isinstance(one.message, UnknownWordsWarning)]
    assert set(warning.words) >= {"xylophone", "Zwetschge"}
    # A word of the other language is in the joint vocabulary, and no word of a source.
    assert "▁der" in translator.source_tokenizer.vocabulary
    with pytest.warns(UnknownWordsWarning, match="der"):
        translator.translate("der")


def test_a_source_far_longer_than_any_in_training(command: Command, trained: Path) -> None:
    done = command("translate", trained, "--max-length", "0,5", text="a dog " * 600 + "\n")
    assert done.code == 0
    assert "longer than any in training: line 1 has" in done.err


def test_what_training_covered_stays_with_the_model(translator: Translator, tmp_path: Path) -> None:
    copy = translator.save(tmp_path / "copy")
    assert json.loads((copy / FILE).read_text())["longest_source"] > 4
    with pytest.warns(LongInputWarning):
        regard.load(copy).translate("a dog " * 60, beam=1)
    # Nothing is known of the training of a foreign folder: only unknown tokens are a cause.
    (copy / FILE).unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error", LongInputWarning)
        regard.load(copy).translate("a dog " * 60, beam=1)


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram", "characters"])
def test_every_text_is_spelled_and_comes_back(kind: str) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, 2000, byte_fallback=True)
    assert len(tokenizer) <= 2000
    unknown = tokenizer.special_token_id("unk")
    for text in UNSEEN:
        ids = tokenizer.encode(text)
        assert unknown not in ids
        # The mark of a space inside tokens is read as a space.
        assert tokenizer.decode(ids) == text.replace("▁", " ").strip()
    # What was learnt is cut as before.
    plain = train_tokenizer(TEXTS, kind, 2000 - 256)
    assert tokenizer.tokens(tokenizer.encode(TEXTS[3])) == plain.tokens(plain.encode(TEXTS[3]))


def test_transformers_spells_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer: Tokenizer = train_tokenizer(TEXTS, "words", 2000, byte_fallback=True)
    tokenizer.save(tmp_path / "tokenizer.json")
    other = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in [*UNSEEN, TEXTS[0]]:
        ids = tokenizer.encode(text)
        assert other(text, add_special_tokens=False).input_ids == ids
        assert other.decode(ids) == tokenizer.decode(ids)


def test_a_small_vocabulary_has_no_room_for_bytes() -> None:
    small = train_tokenizer(TEXTS, "words", 300, byte_fallback=True)
    assert small.to_json() == train_tokenizer(TEXTS, "words", 300).to_json()


def test_a_picture_of_unknown_words_says_so(command: Command, trained: Path) -> None:
    done = command("look", trained, "The xylophone sees a cat.")
    assert done.code == 0, done.err
    assert "xylophone" in done.err
    assert not command("look", trained, "The dog sees a cat.").err


def test_encoders_and_memory_networks_name_unknown_words() -> None:
    """Classes, vectors and answers of unknown words look like any others."""
    words = looked.UNFRAMED
    description: Any = preset("bert:tiny", len(words), 32, layers=1, d_model=16, heads=2)
    encoder = TextEncoder(build(description), description, words)
    story = spec.MemoryNetwork(8, len(words))
    network = MemoryNetworkModel(build(story), story, words)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.embed(["The dog sees a cat."])
        network.answer("The cat?", "The dog sees.")
    with pytest.warns(UnknownWordsWarning, match="xylophone"):
        encoder.embed(["The dog sees a xylophone."])
    with pytest.warns(UnknownWordsWarning, match="Zorro"):
        network.answer("The cat?", "Zorro sees. The dog sees.")


def test_a_known_word_in_another_place_is_known() -> None:
    """Byte-level BPE spells a word with other tokens at the beginning, and around two spaces."""
    texts = [f"a good film of {i} cats" for i in range(60)]
    tokenizer = train_lossless_tokenizer(texts, "bpe", 330, SpecialTokenTemplate(("<mask>",)))
    rows = tokenizer.encode_batch(texts)
    coverage = row_statistics(rows, tokenizer).coverage
    for text in ("film of cats", "cats", "good  film", "good <mask> film"):
        assert not coverage.unseen_tokens.isdisjoint(tokenizer.encode(text))
        assert unknown_words(tokenizer, text, coverage) == []
    assert unknown_words(tokenizer, "a good Zug, of cats", coverage) == ["Zug"]


def test_a_new_word_of_known_pieces_is_unknown(tmp_path: Path) -> None:
    """BPE spells any word: what is new is that these pieces follow each other."""
    chooser = random.Random(0)
    nouns = ["film", "cats", "story", "dogs", "music", "house", "plan", "boat", "lamp", "forest"]
    texts = [f"a good {chooser.choice(nouns)} of {chooser.choice(nouns)}" for _ in range(400)]
    tokenizer = train_lossless_tokenizer(texts, "bpe", 258, SpecialTokenTemplate(()))
    coverage = row_statistics(tokenizer.encode_batch(texts), tokenizer).coverage
    coverage.write(tmp_path)
    for known in (coverage, read_coverage(tmp_path)):
        assert unknown_words(tokenizer, "a good story of boat", known) == []
        assert unknown_words(tokenizer, "a good mats of forest", known) == ["mats"]
    assert coverage.unseen_tokens.isdisjoint(tokenizer.encode("a good mats of forest"))
    both = merged(coverage, row_statistics([tokenizer.encode("a mats")], tokenizer).coverage)
    assert both.spellings is None  # new spellings are usual in one line: nothing is said of any


def test_a_score_says_itself_what_unknown_words_cost() -> None:
    words = looked.UNFRAMED
    description: Any = preset("bert:tiny", len(words), 32, layers=1, d_model=16, heads=2)
    encoder = TextEncoder(build(description), description, words)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regard.evaluate(encoder, [("a xylophone", "Zorro"), ("a dog", "a cat")], task="contrastive")
