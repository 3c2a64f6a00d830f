"""Tokenizers for language models: nothing is lost, nothing is required, and no half characters are
shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from regard.data.text.streaming import REPLACEMENT, StreamingDecoder
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import load_tokenizer
from regard.data.text.tokenizer_training import SpecialTokenTemplate, train_lossless_tokenizer
from regard.system.errors import DataError, SettingError

TEXT = "To be,\n\n  or not\tto be: that is\r\n the question — naïve 😀 日本語.\n"
LETTERS = train_lossless_tokenizer([TEXT], "characters", 200, SpecialTokenTemplate(()))
PIECES = train_lossless_tokenizer([TEXT * 3], "bpe", 300, SpecialTokenTemplate(("<|endoftext|>",)))


@pytest.fixture(scope="module")
def spaced() -> Tokenizer:
    """As LLaMA's: ▁ for spaces, <s> in front."""
    vocabulary = {
        "<unk>": 0,
        "<s>": 1,
        "</s>": 2,
        "▁to": 3,
        "▁be": 4,
        "▁": 5,
        "t": 6,
        "o": 7,
        "b": 8,
        "e": 9,
        "▁t": 10,
    }
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [("▁", "t"), ("▁t", "o")], unk_token="<unk>")
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return Tokenizer(backend).for_prompts()


def test_characters_come_back_as_they_are() -> None:
    assert LETTERS.decode(LETTERS.encode(TEXT)) == TEXT
    assert len(LETTERS.encode(TEXT)) == len(TEXT)
    assert len(LETTERS) == len(set(TEXT)) + 1
    assert LETTERS.encode("x")[0] != LETTERS.special_token_id("unk") or "x" not in TEXT
    assert LETTERS.encode("ß") == [LETTERS.special_token_id("unk")]
    assert (
        LETTERS.special_token_id("pad"),
        LETTERS.special_token_id("eos"),
        LETTERS.special_token_id("bos"),
    ) == (None, None, None)


def test_a_mask_takes_the_space_before_it_as_a_word_does() -> None:
    template = SpecialTokenTemplate(("[UNK]", "[MASK]"))
    tokenizer = train_lossless_tokenizer(["the cat sat on the mat"], "bpe", 300, template)
    spaced = tokenizer.encode("the [MASK] sat")
    assert spaced == tokenizer.encode("the[MASK] sat")
    assert len(spaced) == len(tokenizer.encode("the cat sat"))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bytes_can_spell_everything(text: str) -> None:
    assert PIECES.decode(PIECES.encode(text)) == text
    assert "".join(stream_text(PIECES, [], PIECES.encode(text))) == text


@given(st.text("ab 😀é日\n", max_size=12), st.text("ab 😀é日\n", max_size=12))
def test_a_stream_gives_whole_characters_after_any_prompt(before: str, after: str) -> None:
    ids = PIECES.encode(after)
    given = list(stream_text(PIECES, PIECES.encode(before), ids))
    assert "".join(given) == after
    assert not any(REPLACEMENT in piece for piece in given)
    assert len(given) == len(ids) + 1


def test_a_stream_that_stops_inside_a_character_still_ends() -> None:
    growing = StreamingDecoder(PIECES)
    told = [growing.put(token) for token in PIECES.encode("a🐙")[:-1]]
    assert told[0] == "a"
    assert set(told[1:]) == {""}
    assert growing.end() == REPLACEMENT
    assert growing.end() == ""


def test_spaces_depend_on_neighbours(spaced: Tokenizer) -> None:
    prompt = spaced.input_ids("to be")
    assert prompt[0] == 1
    after = spaced.encode("to be to")
    assert "".join(stream_text(spaced, prompt, after)) == " to be to"
    assert "".join(stream_text(spaced, [1], after)) == "to be to"
    with_end = [*after, 2, *after]
    assert "".join(stream_text(spaced, prompt, with_end)) == " to be to to be to"


def test_a_prompt_is_never_ended() -> None:
    words = train_lossless_tokenizer(
        [TEXT], "characters", 200, SpecialTokenTemplate(("<s>", "</s>"), "<s> $A </s>")
    )
    assert words.input_ids("be") == [words.special_token_id("bos"), *words.encode("be")]
    assert words.encode("</s>") == [words.special_token_id("eos")]
    assert words.input_ids("be</s>")[-1] == words.special_token_id("eos")


def test_files_without_padding_open(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(PIECES.to_json())
    opened = load_tokenizer(path)
    assert opened.encode(TEXT) == PIECES.encode(TEXT)
    assert opened.special_tokens["eos"] == "<|endoftext|>"
    assert opened.special_ids == {opened.special_token_id("eos")}
    with pytest.raises(DataError, match="mask"):
        opened.required_token_id("mask")


def test_bad_files_and_kinds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match=r"bad\.json"):
        load_tokenizer(tmp_path / "bad.json")
    (tmp_path / "latin.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match="UTF-8"):
        load_tokenizer(tmp_path / "latin.json")
    with pytest.raises(SettingError, match="characters"):
        train_lossless_tokenizer(["a"], "charakters", 10, SpecialTokenTemplate(()))
    with pytest.raises(DataError, match="no text"):
        train_lossless_tokenizer([], "characters", 10, SpecialTokenTemplate(()))


def stream_text(
    tokenizer: Tokenizer, prompt: Sequence[int], tokens: Iterable[int]
) -> Iterator[str]:
    """The text of `tokens` after a prompt: a piece for each token, and the rest."""
    decoder = StreamingDecoder(tokenizer, prompt)
    for token in tokens:
        yield decoder.put(token)
    yield decoder.end()
