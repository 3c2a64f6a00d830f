"""Tokenizers for language models: nothing is lost, nothing is required, and no half characters are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from regard.errors import DataError, SettingError
from regard.text.exact import HALF, Exact, SpecialIds, StreamingDecoder, pieces

TEXT = "To be,\n\n  or not\tto be: that is\r\n the question — naïve 😀 日本語.\n"
LETTERS = Exact.learn([TEXT], "characters", 200, SpecialIds(()))
PIECES = Exact.learn([TEXT * 3], "bpe", 300, SpecialIds(("<|endoftext|>",)))


@pytest.fixture(scope="module")
def spaced() -> Exact:
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
    return Exact(backend)


def test_characters_come_back_as_they_are() -> None:
    assert LETTERS.decode(LETTERS.encode(TEXT)) == TEXT
    assert len(LETTERS.encode(TEXT)) == len(TEXT)
    assert len(LETTERS) == len(set(TEXT)) + 1
    assert LETTERS.encode("x")[0] != LETTERS.unk or "x" not in TEXT
    assert LETTERS.encode("ß") == [LETTERS.unk]
    assert (LETTERS.pad, LETTERS.end, LETTERS.start) == (None, None, None)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_bytes_can_spell_everything(text: str) -> None:
    assert PIECES.decode(PIECES.encode(text)) == text
    assert "".join(pieces(PIECES, [], PIECES.encode(text))) == text


@given(st.text("ab 😀é日\n", max_size=12), st.text("ab 😀é日\n", max_size=12))
def test_a_stream_gives_whole_characters_after_any_prompt(before: str, after: str) -> None:
    ids = PIECES.encode(after)
    given = list(pieces(PIECES, PIECES.encode(before), ids))
    assert "".join(given) == after
    assert not any(HALF in piece for piece in given)
    assert len(given) == len(ids) + 1


def test_a_stream_that_stops_inside_a_character_still_ends() -> None:
    growing = StreamingDecoder(PIECES)
    told = [growing.add(token) for token in PIECES.encode("a🐙")[:-1]]
    assert told[0] == "a"
    assert set(told[1:]) == {""}
    assert growing.rest() == HALF
    assert growing.rest() == ""


def test_spaces_depend_on_neighbours(spaced: Exact) -> None:
    prompt = spaced.prompt("to be")
    assert prompt[0] == 1
    after = spaced.encode("to be to")
    assert "".join(pieces(spaced, prompt, after)) == " to be to"
    assert "".join(pieces(spaced, [1], after)) == "to be to"
    with_end = [*after, 2, *after]
    assert "".join(pieces(spaced, prompt, with_end)) == " to be to to be to"


def test_a_prompt_is_never_ended() -> None:
    words = Exact.learn([TEXT], "characters", 200, SpecialIds(("<s>", "</s>"), "<s> $A </s>"))
    assert words.prompt("be") == [words.start, *words.encode("be")]
    assert words.encode("</s>") == [words.end]
    assert words.prompt("be</s>")[-1] == words.end


def test_files_without_padding_open(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(PIECES.to_json())
    opened = Exact.load(path)
    assert opened.encode(TEXT) == PIECES.encode(TEXT)
    assert opened.token(opened.end or 0) == "<|endoftext|>"
    assert opened.special == {opened.end}
    with pytest.raises(DataError, match="mask"):
        opened.required("mask", ["[MASK]"])


def test_bad_files_and_kinds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        Exact.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match=r"bad\.json"):
        Exact.load(tmp_path / "bad.json")
    (tmp_path / "latin.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match="UTF-8"):
        Exact.load(tmp_path / "latin.json")
    with pytest.raises(SettingError, match="characters"):
        Exact.learn(["a"], "charakters", 10, SpecialIds(()))
    with pytest.raises(DataError, match="no text"):
        Exact.learn([], "characters", 10, SpecialIds(()))
