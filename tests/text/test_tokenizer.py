"""Tokenizers: what comes back, what stays the same, and what bad files get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard.system.errors
from regard.data.text.tokenizer import FRAMING_ROLES, SPECIALS, Tokenizer
from regard.data.text.tokenizer_files import (
    load_translation_tokenizer,
    translation_tokenizer_from_json,
)
from regard.data.text.tokenizer_training import ALPHABET, train_tokenizer, word_level_json
from regard.system.errors import DataError, SettingError

KINDS = ("bpe", "unigram", "words", "characters")
TEXTS = [
    "The dog sees the street.",
    "A dog (the big one) runs down the street, doesn't it?",
    "Ein Hund läuft über die Straße … „schnell“!",
    "Le chien n'est pas là : il court\u00a0!",
    "犬は通りを走る。 <pad> </s> <s> <unk> a</s>b",
    "tabs\tand\u2028separators – dashes—and 3,000.50 € 👍🏽",
    "naïve café e\u0301te\u0301",
] * 3
LETTERS = sorted(set(unicodedata.normalize("NFC", "".join(TEXTS))))


@cache
def learned(kind: str, size: int = 300) -> Tokenizer:
    return train_tokenizer(TEXTS, kind, size)


def python(code: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh process; a variable of None is unset."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(regard.system.errors.__file__).parents[1]),
        **variables,
    }
    kept = {name: value for name, value in environment.items() if value is not None}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, env=kept, timeout=60, check=False
    )


def tidy(text: str) -> str:
    """What the module says it does to a text before cutting it."""
    text = unicodedata.normalize("NFC", text).replace("▁", " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.strip()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from([*LETTERS, " ", " ", ".", "'", "▁"]), max_size=40))
def test_known_letters_come_back(kind: str, text: str) -> None:
    tokenizer = learned(kind)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tidy(text)
    assert tokenizer.special_token_id("unk") not in ids


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["dog", "The", "street", ".", "(", "it", "?", "…", "€"]), max_size=12
    )
)
def test_known_words_come_back(words: list[str]) -> None:
    # Each word is known with a space before it, and each mark without.
    text = "".join(word if not word.isalpha() else f" {word}" for word in words)
    tokenizer = train_tokenizer(["dog The street it a.(?…€ .", " ( ? … €"], "words", 50)
    assert tokenizer.decode(tokenizer.encode(text)) == tidy(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["don't", "a , b", "(x)", "…", "(( a ))", "a. b .c", "x-y", "“q”", "5,000.50"]
)
def test_punctuation_comes_back(kind: str, text: str) -> None:
    tokenizer = train_tokenizer([text], kind, 100)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_words_share_their_piece_with_and_without_punctuation() -> None:
    tokenizer = learned("words")
    assert tokenizer.tokens(tokenizer.encode("The street.")) == ["▁The", "▁street", "."]
    bpe = learned("bpe")
    assert bpe.encode("the street.")[:-1] == bpe.encode("the street")


def test_characters_are_one_token_each() -> None:
    tokenizer = learned("characters")
    assert tokenizer.tokens(tokenizer.encode("a dog.")) == list("a dog.")


@pytest.mark.parametrize("kind", KINDS)
def test_empty_and_blank_texts_have_no_tokens(kind: str) -> None:
    tokenizer = learned(kind)
    assert tokenizer.encode_batch(["", " ", " \t\n "]) == [[], [], []]
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_specials_have_their_ids_and_are_not_decoded(kind: str) -> None:
    tokenizer = learned(kind)
    assert [tokenizer.special_token_id(role) for role in FRAMING_ROLES] == [0, 1, 2, 3]
    assert tokenizer.tokens([0, 1, 2, 3, 10**6]) == [*SPECIALS, "<id 1000000>"]
    ids = tokenizer.encode("the street")
    assert tokenizer.decode([1, *ids, 3, 2, 0, 0]) == tokenizer.decode(ids)
    assert tokenizer.decode_batch([ids, []]) == [tokenizer.decode(ids), ""]
    assert list(tokenizer.vocabulary.values()) == list(range(len(tokenizer)))


@pytest.mark.parametrize("kind", KINDS)
def test_special_names_in_a_text_are_ordinary_characters(kind: str) -> None:
    text = "<pad> </s> <s> <unk> a</s>b"
    tokenizer = train_tokenizer([text], kind, 100)
    for one in (tokenizer, translation_tokenizer_from_json(tokenizer.to_json())):
        ids = one.encode(text)
        assert not {0, 1, 2, 3} & set(ids)
        assert one.decode(ids) == text


def test_unknown_letters_are_unknown() -> None:
    for kind in KINDS:
        assert learned(kind).encode("дом")[-1] == learned(kind).special_token_id("unk")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [6, 20, 60, 100, 101, 200, 10_000])
def test_size_counts_everything(kind: str, size: int) -> None:
    assert 4 < len(train_tokenizer(TEXTS, kind, size)) <= size


def test_rare_letters_leave_room_for_pieces() -> None:
    rare = [chr(i) for i in range(0x4E00, 0x4E00 + ALPHABET + 200)]
    for kind in ("bpe", "unigram"):
        tokenizer = train_tokenizer(["common words " * 20, *rare], kind, 2000)
        letters = [token for token in tokenizer.vocabulary if len(token) == 1]
        assert len(letters) == ALPHABET + 1
        # Equally rare letters are chosen by their code point, not by a hash.
        assert rare[0] in letters
        assert rare[-1] not in letters
        assert tokenizer.encode(rare[-1])[-1] == tokenizer.special_token_id("unk")


@pytest.mark.parametrize("kind", KINDS)
def test_learning_is_deterministic_across_processes(kind: str) -> None:
    # Other processes hash with other seeds; rare letters and equal counts are where that would
    # show.
    code = f"""
from regard.data.text.tokenizer_training import train_tokenizer
rare = [chr(0x4e00 + 7 * i) + chr(0x4e00 + 11 * i) for i in range(90)]
texts = [f"w{{i % 37}} v{{i % 11}} {{r}} (x{{i % 5}})." for i, r in enumerate(rare)]
# letters that are never used alone
texts += [f"αβγδεζ{{c}} ηθικλμ{{c}}" for c in "abcdefghij"] * 20
print([train_tokenizer(iter(texts), {kind!r}, size).fingerprint for size in (150, 600)])
"""
    runs = [python(code) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.count("'") == 4


def test_save_and_load_give_the_same_tokenizer(tmp_path: Path) -> None:
    for kind in KINDS:
        tokenizer = learned(kind)
        tokenizer.save(tmp_path / "tokenizer.json")
        again = load_translation_tokenizer(tmp_path / "tokenizer.json")
        assert again.to_json() == tokenizer.to_json()
        assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_it_and_agrees(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = learned(kind)
    tokenizer.save(tmp_path / "tokenizer.json")
    other = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"),
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        split_special_tokens=True,
    )
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert other(text, add_special_tokens=False).input_ids == ids
        assert other(text).input_ids == [*ids, tokenizer.special_token_id("eos")]
        assert other.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert plain(TEXTS[1], add_special_tokens=False).input_ids == tokenizer.encode(TEXTS[1])


def test_bad_settings() -> None:
    with pytest.raises(SettingError, match="did you mean 'unigram'"):
        train_tokenizer(TEXTS, "unigrams", 100)
    with pytest.raises(SettingError, match="no room"):
        train_tokenizer(TEXTS, "bpe", 5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], [" ", "\t"]])
def test_nothing_to_learn_from(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text to learn"):
        train_tokenizer(texts, kind, 100)


def test_errors_of_the_texts_pass_through_learning() -> None:
    def broken() -> Iterator[str]:
        yield "a line"
        raise DataError("the file broke", "mend it")

    for kind in KINDS:
        with pytest.raises(DataError, match="the file broke"):
            train_tokenizer(broken(), kind, 100)


@pytest.mark.parametrize("kind", KINDS)
def test_half_characters_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"lone surrogate\) at position 1"):
        learned(kind).encode("a\ud800")
    with pytest.raises(DataError, match="lone surrogate"):
        train_tokenizer(["fine", "a\ud800"], kind, 100)


WORDS = {
    "type": "WordLevel",
    "vocab": {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3},
    "unk_token": "<unk>",
}
PANICS = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "not json",
        json.dumps({"version": "1.0", "model": {"type": "Nothing"}}),
        json.dumps({"version": "1.0", "model": WORDS, "normalizer": PANICS}),
        json.dumps({"version": "1.0", "model": WORDS | {"unk_token": "missing"}}),
        learned("bpe").to_json()[:-100],
    ],
)
def test_bad_files_are_data_errors(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match=r"t\.json is not a usable tokenizer\.json") as caught:
        load_translation_tokenizer(tmp_path / "t.json")
    assert "→ give a whole file" in str(caught.value)


def test_unreadable_files_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file") as caught:
        load_translation_tokenizer(tmp_path / "nowhere.json")
    assert "nowhere.json" in caught.value.problem
    with pytest.raises(DataError, match="directory"):
        load_translation_tokenizer(tmp_path)
    (tmp_path / "latin").write_bytes(b"{\xe9}")
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 1\)"):
        load_translation_tokenizer(tmp_path / "latin")


@pytest.mark.parametrize(("gone", "role"), [("<pad>", "padding"), ("</s>", "end")])
def test_missing_roles_are_named(gone: str, role: str) -> None:
    vocab = {token: i for token, i in WORDS["vocab"].items() if token != gone}  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=f"here has no {role} token") as caught:
        translation_tokenizer_from_json(
            json.dumps({"version": "1.0", "model": WORDS | {"vocab": vocab}}), origin="here"
        )
    assert gone in caught.value.problem
    assert "special token" in caught.value.repair


def test_other_names_and_missing_start() -> None:
    tokenizer = translation_tokenizer_from_json(json.dumps({"version": "1.0", "model": WORDS}))
    assert [tokenizer.special_token_id(role) for role in FRAMING_ROLES] == [0, None, 1, 2]
    assert len(tokenizer) == 4
    assert tokenizer.decode([0, 3, 2, 1]) == "a"  # the file does not mark them as special
    with pytest.raises(DataError, match="no start token"):
        tokenizer.required_token_id("bos")
    bert = WORDS | {"vocab": {"[PAD]": 5, "[CLS]": 6, "[SEP]": 7, "[UNK]": 8}, "unk_token": "[UNK]"}
    tokenizer = translation_tokenizer_from_json(json.dumps({"version": "1.0", "model": bert}))
    assert [tokenizer.special_token_id(role) for role in FRAMING_ROLES] == [5, 6, 7, 8]
    assert len(tokenizer) == 9


def test_masks_in_a_text_keep_their_meaning() -> None:
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    added = [{"id": 0, "content": "<pad>", **flags}, {"id": 4, "content": "[MASK]", **flags}]
    model = WORDS | {"vocab": WORDS["vocab"] | {"[MASK]": 4}}  # type: ignore[operator]
    tokenizer = translation_tokenizer_from_json(
        json.dumps({"version": "1.0", "model": model, "added_tokens": added})
    )
    assert tokenizer.encode("a[MASK]") == [3, 4]


def test_a_file_cannot_ask_for_silent_truncation() -> None:
    state = json.loads(learned("characters").to_json())
    state["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    assert len(translation_tokenizer_from_json(json.dumps(state)).encode("a dog.")) == 6


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_forked_children_neither_warn_nor_hang() -> None:
    code = """
import os
from regard.data.text.tokenizer_training import train_tokenizer
tokenizer = train_tokenizer(["a b c"] * 9, "bpe", 30)
texts = ["a b c"] * 5000
want = tokenizer.encode_batch(texts)
child = os.fork()
if not child:
    same = tokenizer.encode_batch(texts) == want
    os._exit(0 if same and os.environ["TOKENIZERS_PARALLELISM"] == "false" else 1)
print(os.waitpid(child, 0)[1], os.environ.get("TOKENIZERS_PARALLELISM"))
"""
    for setting, left in ((None, "None"), ("false", "false")):
        run = python(code, TOKENIZERS_PARALLELISM=setting)
        assert (run.stdout.split(), run.stderr) == (["0", left], "")


def test_torch_is_not_imported() -> None:
    modules = "regard.data.text.tokenizer, regard.data.text_files, regard.data.corpus"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert python(code).stdout.strip() == "False"


def test_a_word_level_vocabulary_keeps_the_most_frequent_words() -> None:
    texts = ["c b a c", "c b"]
    everything = json.loads(word_level_json(texts))["model"]["vocab"]
    assert list(everything) == ["[PAD]", "[UNK]", "[CLS]", "a", "b", "c"]
    limited = json.loads(word_level_json(texts, size=5))["model"]["vocab"]
    assert list(limited) == ["[PAD]", "[UNK]", "[CLS]", "b", "c"]


def test_tokens_of_byte_level_bpe_read_as_what_their_bytes_spell() -> None:
    from tokenizers import pre_tokenizers

    from regard.data.text.tokenizer import _byte_letters
    from regard.data.text.tokenizer_training import SpecialTokenTemplate, train_lossless_tokenizer

    assert set(_byte_letters()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(_byte_letters().values()) == list(range(256))
    text = "für Käse für Käse"
    template = SpecialTokenTemplate(("<|endoftext|>",))
    tokenizer = train_lossless_tokenizer([text] * 20, "bpe", 290, template)
    assert tokenizer.tokens(tokenizer.encode(text))[1:] == ["ĠKäse", "Ġfür", "ĠKäse"]
    # One letter in four bytes that were never seen together, and a new line.
    assert tokenizer.tokens(tokenizer.encode("😀")) == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert tokenizer.tokens(tokenizer.encode("\n")) == ["\n"]
    assert tokenizer.tokens([0]) == ["<|endoftext|>"]
