"""Tags are of words, as in the data, whatever the tokens: a tokenizer of characters tagged letters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

import regard
from regard import build, spec
from regard.data.labelled import TaggedWords
from regard.data.tag_alignment import align_words, word_spans, word_tags
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_training import (
    SpecialTokenTemplate,
    train_lossless_tokenizer,
    train_tokenizer,
    word_level_json,
)
from regard.evaluation.outputs import tag_words
from regard.evaluation.task import Settings
from regard.families.presets import preset
from regard.models import TextEncoder
from regard.studio import answers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TEMPLATE = SpecialTokenTemplate(SPECIAL, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
WORDS = ["Ada", "Lovelace's", "friend", "läuft", "to", "U.S.", "well-known", "..."]
TEXTS = [" ".join(WORDS), "Bob runs, and Ada doesn't.", "the dog"] * 8


def wordpiece() -> Tokenizer:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=60, special_tokens=list(SPECIAL))
    )
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return Tokenizer(backend)


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": wordpiece,
    "byte-level bpe": lambda: train_lossless_tokenizer(TEXTS, "bpe", 300, TEMPLATE),
    "characters": lambda: train_lossless_tokenizer(TEXTS, "characters", 300, TEMPLATE),
    "words": lambda: Tokenizer(Backend.from_str(word_level_json(TEXTS))),
    **{
        f"sentence {kind}": partial(train_tokenizer, TEXTS, kind, 1500, byte_fallback=True)
        for kind in ("bpe", "unigram", "words", "characters")
    },
}


@pytest.fixture(params=list(TOKENIZERS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tagger(kind: str) -> TextEncoder:
    tokenizer = TOKENIZERS[kind]()
    bert: Any = preset("bert:tiny", len(tokenizer), 128, layers=1, d_model=16, heads=2)
    head = spec.ClassifierHead(3, "tag")
    description = bert.with_heads(head)
    config = {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}
    return TextEncoder(build(description), description, tokenizer, config)


@pytest.mark.filterwarnings("ignore::regard.system.errors.UnknownWordsWarning")
def test_a_tag_for_each_word_of_the_data(tagger: TextEncoder) -> None:
    """Asked with words, or with a text that has them, a tagger says the same; the studio too."""
    words = [word for word in WORDS if word != "U.S."]  # a text has its full stop apart
    text = " ".join(words)
    tagged = tagger.tag(text)
    assert [one.text for one in tagged] == words
    example = TaggedWords(words, ["O"] * len(words))
    outputs = tag_words(tagger, [example], Settings())
    assert outputs.values == [[one.label for one in tagged]]
    assert outputs.references == [example.tags]
    shown = answers.answer(answers.Question(tagger, tagger.look(text, ask=["logits"]), text))
    assert [span[:2] for span in shown.spans] == [(one.text, one.label) for one in tagged]


@pytest.mark.filterwarnings("ignore::regard.system.errors.UnknownWordsWarning")
def test_punctuation_is_a_word_of_its_own(tagger: TextEncoder) -> None:
    """As in the data, whatever the tokens: what is written at a word is read as apart from it."""
    text = '  "Ada  sleeps," said Bob (soundly). '
    tagged = tagger.tag(text)
    expected = ['"', "Ada", "sleeps", ",", '"', "said", "Bob", "(", "soundly", ")", "."]
    assert [one.text for one in tagged] == expected
    for one in tagged:
        assert text[one.start : one.end] == one.text
    apart, written = tagger.tag([" ".join(expected), text])
    assert [one.label for one in apart] == [one.label for one in written]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("U.S. 3.5 doesn't", ["U.S", ".", "3.5", "doesn't"]),
        ("... — :-)", ["...", "—", ":-)"]),
        ("東京 is big", ["東", "京", "is", "big"]),
        ("हिन्दी।", ["हिन्दी", "।"]),
        ("", []),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in word_spans(text)] == words


def test_a_word_that_has_no_token_keeps_its_place(kind: str) -> None:
    """A zero-width space is dropped by some tokenizers: the tags behind it must not move up."""
    tokenizer = TOKENIZERS[kind]()
    example = TaggedWords(["Ada", "\u200b", "friend"], ["B-PER", "O", "I-PER"])
    [(encoding, words)] = align_words(tokenizer, [example])
    labels = ["O" if word is None else example.tags[word] for word in words]
    assert len(labels) == len(encoding)
    assert word_tags(words, labels, 3) == example.tags
    # What is cut off is outside of all entities.
    [(_, words)] = align_words(tokenizer, [example], 3)
    assert len(word_tags(words, ["B-PER"] * len(words), 3)) == 3


@pytest.mark.parametrize("tokenizer", ["words", "bpe", "characters"])
def test_trained_from_scratch_and_fine_tuned(tokenizer: str, tmp_path: Path) -> None:
    """Scores count words: those of the data, whatever the tokens."""
    settings = {
        "d_model": 16, "d_ff": 16, "heads": 2, "layers": 1, "steps": 2, "device": "cpu",
        "threads": 1, "learning_rate": 1e-3, "samples": 0, "model": "bert:tiny", "context": 64,
    }  # fmt: skip
    (tmp_path / "text.txt").write_text("Ada sleeps . Bob runs .\n" * 200)
    (tmp_path / "tags.conll").write_text("Ada B-PER\nsleeps O\n. O\n\nBob B-PER\nruns O\n\n" * 6)
    kinds = {} if tokenizer == "words" else {"tokenizer": tokenizer, "vocabulary": 300}
    data = str(tmp_path / "tags.conll")
    regard.train({**settings, **kinds}, objective="tag", text=data, out=tmp_path / "new")
    runs = [tmp_path / "new"]
    if tokenizer != "words":
        regard.train({**settings, **kinds}, text=str(tmp_path / "text.txt"), out=tmp_path / "base")
        quick: dict[str, Any] = {"steps": 1, "device": "cpu", "threads": 1}
        regard.finetune(tmp_path / "base", "tag", data, out=tmp_path / "tuned", **quick)
        runs.append(tmp_path / "tuned")
    for run in runs:
        assert [one.text for one in regard.load(run).tag("Ada sleeps")] == ["Ada", "sleeps"]
        result = regard.evaluate(run, data, metrics=["tag_accuracy"])
        assert sum(map(len, result.results["tag_accuracy"].outputs.references)) == 5 * 6
