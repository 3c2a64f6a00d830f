"""Tokenizers of model folders: a folder's own tokenizer.json, and tokenizers put together from
vocabularies, against transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from regard.data.text.ctc import CTCDecoder
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import open_encoder_tokenizer
from regard.system.errors import DataError

transformers = pytest.importorskip("transformers")

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Ça va? Élan  naïve,\tdon't — 東京 tower!",
    "unbelievable [MASK] and <mask> things </s> [SEP]",
    "  leading and trailing  ",
    "🙂 odd 1234567 \x00 bytes",
    "",
]
PAIRS = [("a fox", "The dog jumps."), ("over [MASK]", " the <mask>"), ("", "lazy")]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *"0123456789", *".,!?'", "T", "é"]
PIECES = [
    "the",
    "quick",
    "fox",
    "##umps",
    "dog",
    "over",
    "un",
    "##believ",
    "##able",
    "and",
    "don",
    "The",
    "東",
]


def wordpiece(folder: Path, specials: list[str], **settings: Any) -> None:
    vocabulary = [*specials, *LETTERS, *(f"##{letter}" for letter in LETTERS), *PIECES]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def byte_level(folder: Path, specials: list[str], suffix: str = "", **settings: Any) -> None:
    backend = tokenizers.Tokenizer(
        models.BPE(end_of_word_suffix=suffix) if suffix else models.BPE()
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {"end_of_word_suffix": suffix} if suffix else {}
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=specials,
        initial_alphabet=alphabet,
        show_progress=False,
        **options,
    )
    backend.train_from_iterator(
        ["the quick brown fox jumps over the lazy dog"] * 3 + SENTENCES[:2], trainer
    )
    backend.model.save(str(folder))
    if suffix:  # each letter at the end of a word, too
        vocabulary = json.loads((folder / "vocab.json").read_text())
        for letter in alphabet:
            vocabulary.setdefault(letter + suffix, len(vocabulary))
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def assert_equal(ours: Tokenizer, theirs: Any, *, mask: bool = True) -> None:
    inputs: list[str | tuple[str, str]] = [*SENTENCES, *PAIRS]
    found = ours.encode_with_template(inputs)
    for text, encoding in zip(inputs, found, strict=True):
        wanted = theirs(*((text,) if isinstance(text, str) else text), return_offsets_mapping=True)
        assert encoding.ids == wanted["input_ids"], text
        assert encoding.offsets == wanted["offset_mapping"], text
        if "token_type_ids" in wanted:
            assert encoding.type_ids == wanted["token_type_ids"], text
        assert encoding.word_ids == wanted.word_ids()
    assert ours.special_token_id("pad") == theirs.pad_token_id
    if mask:
        assert ours.special_token_id("mask") == theirs.mask_token_id


BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize(
    "settings",
    [{}, {"do_lower_case": False}, {"strip_accents": False, "tokenize_chinese_chars": False}],
)
@pytest.mark.parametrize("kind", ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"])
def test_wordpiece(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    wordpiece(tmp_path, BERTS, **settings)
    assert_equal(
        open_encoder_tokenizer(tmp_path), getattr(transformers, kind).from_pretrained(tmp_path)
    )


def test_wordpiece_of_mpnet(tmp_path: Path) -> None:
    names = {
        "unk_token": "[UNK]",
        "mask_token": "<mask>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "sep_token": "</s>",
    }
    wordpiece(tmp_path, ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], **names)
    assert_equal(
        open_encoder_tokenizer(tmp_path), transformers.MPNetTokenizer.from_pretrained(tmp_path)
    )


@pytest.mark.parametrize("settings", [{}, {"add_prefix_space": True}])
def test_byte_level(settings: dict[str, Any], tmp_path: Path) -> None:
    mask = {"content": "<mask>", "lstrip": True, "__type": "AddedToken"}
    byte_level(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], mask_token=mask, **settings)
    assert_equal(
        open_encoder_tokenizer(tmp_path), transformers.RobertaTokenizer.from_pretrained(tmp_path)
    )


def test_byte_level_of_clip(tmp_path: Path) -> None:
    byte_level(tmp_path, ["<|startoftext|>", "<|endoftext|>"], "</w>")
    ours, theirs = (
        open_encoder_tokenizer(tmp_path),
        transformers.CLIPTokenizer.from_pretrained(tmp_path),
    )
    assert_equal(ours, theirs, mask=False)
    ids = ours.encode_with_template(["the quick fox"])[0].ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_byte_level_without_a_frame_and_with_more_tokens(tmp_path: Path) -> None:
    byte_level(tmp_path, ["<|endoftext|>"])
    size = len(json.loads((tmp_path / "vocab.json").read_text()))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<two>": size + 1, "<one>": size}))
    ours = open_encoder_tokenizer(tmp_path)
    text = "the<one>fox<two>"
    assert (
        ours.encode_with_template([text])[0].ids
        == transformers.GPT2Tokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    )
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<one>": size + 7}))
    with pytest.raises(DataError, match="does not follow"):
        open_encoder_tokenizer(tmp_path)


def test_a_tokenizer_json_is_preferred_and_nothing_is_cut(tmp_path: Path) -> None:
    wordpiece(tmp_path, BERTS)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    backend = theirs.backend_tokenizer
    backend.enable_truncation(5)
    backend.enable_padding(length=20)
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").write_text("nothing")
    ours = open_encoder_tokenizer(tmp_path)
    backend.no_truncation()
    backend.no_padding()
    assert_equal(ours, theirs)
    assert len(ours.encode_with_template([SENTENCES[0]], max_length=6)[0]) == 6
    assert len(ours.encode_with_template([SENTENCES[0]])[0]) > 6


def test_windows_cover_the_second_text(tmp_path: Path) -> None:
    wordpiece(tmp_path, BERTS)
    ours, second = open_encoder_tokenizer(tmp_path), "the quick fox and the dog over the fox"
    parts = ours.windows("the dog", second, max_length=10, overlap=2)
    assert len(parts) > 1
    assert all(len(part) <= 10 for part in parts)
    whole = ours.encode_with_template([("the dog", second)])[0]
    places = {
        offset
        for part in parts
        for offset, s in zip(part.offsets, part.sequence_ids, strict=True)
        if s == 1
    }
    assert places == {o for o, s in zip(whole.offsets, whole.sequence_ids, strict=True) if s == 1}
    assert len(ours.windows("the dog", second, max_length=50, overlap=2)) == 1
    with pytest.raises(DataError, match="shorter first"):
        ours.windows(second, second, max_length=10, overlap=2)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("tokenizer.json", "{}", "usable tokenizer.json"),
        (
            "tokenizer.json",
            '{"model": {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]"}}',
            "tokenizer.json",
        ),
        ("spiece.model", "x", "SentencePiece"),
        ("readme", "x", "no tokenizer"),
        ("vocab.txt", "a\nb\n", "usable vocabulary"),
    ],
)
def test_what_cannot_be_opened(name: str, content: str, word: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=word):
        open_encoder_tokenizer(tmp_path)


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    wordpiece(tmp_path, BERTS)
    with pytest.raises(DataError, match="half a character"):
        open_encoder_tokenizer(tmp_path).encode_with_template([("fine", "\ud800")])


def test_letters(tmp_path: Path) -> None:
    vocabulary = {
        name: i for i, name in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"HELOWRD"])
    }
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    theirs = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
    said = "|HHE<pad>LL<pad>LLO||WW<pad>OR<pad>RLLD|".replace("<pad>", "_")
    ids = [0 if letter == "_" else vocabulary[letter] for letter in said]
    assert CTCDecoder.open(tmp_path).text(ids) == theirs.decode(ids) == "HELLO WORRLD"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    assert CTCDecoder.open(tmp_path).text(ids) == "hello worrld"
    (tmp_path / "vocab.json").write_text(json.dumps({"eng": {"a": 1}}))
    with pytest.raises(DataError, match="one vocabulary"):
        CTCDecoder.open(tmp_path)
