"""Reading text: what a line is, and what each bad file gets."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard.system.errors
from regard.data.labelled import labelled_texts
from regard.data.text_files import lines, pairs, texts
from regard.system.errors import DataError, SettingError, UnreadColumnsWarning

ODD = "a\u2028b\x0bc\x0cd\x85e\x1cf\u2029g"


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff"), max_size=60
    ),
    packed=st.booleans(),
)
def test_only_line_feeds_separate(
    text: str, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = text.encode()
    path = write(
        tmp_path_factory.getbasetemp() / "any.txt", gzip.compress(data) if packed else data
    )
    want = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    assert list(lines(path)) == want


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo", ["one", "\ufefftwo"]),
        (b"x", ["x"]),
        (ODD.encode() + b"\nnext", [ODD, "next"]),
        (b"\x1f", ["\x1f"]),
    ],
)
def test_lines(
    data: bytes, want: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name says nothing about compression, in either direction.
    assert list(lines(write(tmp_path / "plain.gz", data))) == want
    assert list(lines(write(tmp_path / "packed.txt", gzip.compress(data)))) == want
    feed(monkeypatch, data)
    assert list(lines("-")) == want
    feed(monkeypatch, gzip.compress(data))
    assert list(lines("-")) == want


def test_long_lines_and_gzip_of_several_members(tmp_path: Path) -> None:
    long = "é" * 3_000_000
    path = write(tmp_path / "f", gzip.compress(long.encode()) + gzip.compress(b"\nend\n"))
    assert list(lines(path)) == [long, "end"]


def test_a_pipe_gives_its_lines_while_it_is_open() -> None:
    code = (
        "from regard.data.text_files import lines\nfor line in lines('-'): print(line, flush=True)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(regard.system.errors.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(b"first\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"first\n"
        program.stdin.close()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "before", ["", "\ufeff", "good\r\n", "gute Zeile ä\n\n", "x" * 2_000_000 + "\n"]
)
def test_bad_utf8_is_located(before: str, packed: bool, tmp_path: Path) -> None:
    data = before.encode() + "ä".encode() + b"\xff rest\n"
    path = write(tmp_path / "bad.txt", gzip.compress(data) if packed else data)
    with pytest.raises(DataError) as caught:
        list(lines(path))
    offset, line = len(before.encode()) + 2, before.count("\n") + 1
    assert caught.value.problem == f"{path} is not UTF-8: byte 0xff at offset {offset}, line {line}"
    assert "iconv" in caught.value.repair


def test_an_image_is_no_text_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "picture.csv"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(DataError, match="is not a text file"):
        list(lines(path))


def test_a_character_cut_off_at_the_end_is_located(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="byte 0xc3 at offset 1, line 1"):
        list(lines(write(tmp_path / "cut", b"a\xc3")))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nowhere\.txt: No such file") as caught:
        list(lines(tmp_path / "nowhere.txt"))
    assert "→ check the path" in str(caught.value)
    with pytest.raises(DataError, match="directory"):
        list(lines(tmp_path))


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(200_000).hex().encode())
    for end in (2, 5, 1000, len(whole) - 4):
        with pytest.raises(DataError, match=r"half\.gz is damaged") as caught:
            list(lines(write(tmp_path / "half.gz", whole[:end])))
        assert "again" in caught.value.repair
    for wrong in (whole[:2] + b"\x00" * 20, whole[:5000] + b"\xff" * 50 + whole[5050:]):
        with pytest.raises(DataError, match=r"wrong\.gz is damaged"):
            list(lines(write(tmp_path / "wrong.gz", wrong)))


def test_lines_are_streamed(tmp_path: Path) -> None:
    # The bad byte at the end is not reached by who reads only the beginning.
    path = write(tmp_path / "f", b"one\n" + b"x" * 5_000_000 + b"\n\xff")
    assert next(lines(path)) == "one"


PAIRS = [("a cat", "eine Katze"), ("", "leer"), ("a \\ dog", 'ein "Hund"')]


@pytest.mark.parametrize("packed", [False, True])
def test_every_format_gives_the_same_pairs(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = gzip.compress if packed else bytes
    tail = ".gz" if packed else ""
    texts = {
        "tsv": "".join(f"{one}\t{other}\n" for one, other in PAIRS),
        "jsonl": "".join(
            json.dumps({"target": other, "source": one, "id": 1}) + "\n" for one, other in PAIRS
        ),
    }
    source = write(tmp_path / "en", pack("\n".join(one for one, _ in PAIRS).encode()))
    target = write(tmp_path / "de", pack("\r\n".join(other for _, other in PAIRS).encode()))
    assert list(pairs(source, target)) == PAIRS
    feed(monkeypatch, source.read_bytes())
    assert list(pairs("-", target, format="text")) == PAIRS
    for name, text in texts.items():
        data = pack(text.encode())
        assert list(pairs(write(tmp_path / f"both.{name}{tail}", data))) == PAIRS
        assert list(pairs(write(tmp_path / "both", data), format=name)) == PAIRS
        feed(monkeypatch, data)
        assert list(pairs("-", format=name)) == PAIRS


def test_hugging_face_translations_in_either_direction(tmp_path: Path) -> None:
    path = write(
        tmp_path / "f.json.gz", gzip.compress(b'{"translation": {"en": "cat", "de": "Katze"}}\n')
    )
    assert list(pairs(path, languages=("en", "de"))) == [("cat", "Katze")]
    assert list(pairs(path, languages=("de", "en"))) == [("Katze", "cat")]
    with pytest.raises(
        DataError, match=r"f\.json\.gz, line 1 holds the languages 'en', 'de'"
    ) as caught:
        list(pairs(path))
    assert "languages=" in caught.value.repair
    with pytest.raises(DataError, match="line 1: 'fr' is missing"):
        list(pairs(path, languages=("en", "fr")))


def test_further_columns_are_left_out_and_told_once(tmp_path: Path) -> None:
    path = write(tmp_path / "f.tsv", "a\tb\nc\td\te\nf\tg\th\n")
    with pytest.warns(UnreadColumnsWarning, match="line 2 has 3 columns") as told:
        assert list(pairs(path)) == [("a", "b"), ("c", "d"), ("f", "g")]
    assert len(told) == 1


def test_csv_is_read_with_its_header_where_tsv_is(tmp_path: Path) -> None:
    reviews = write(tmp_path / "r.csv", 'review,sentiment\n"Long, but\ngood.",good\n\nBad.,bad\n')
    assert [(one.text, one.label) for one in labelled_texts(reviews)] == [
        ("Long, but\ngood.", "good"),
        ("Bad.", "bad"),
    ]
    assert list(texts(reviews)) == ["Long, but\ngood.", "Bad."]
    assert list(texts(reviews, "sentiment")) == ["good", "bad"]
    assert list(pairs(write(tmp_path / "p.csv", "en,de\ncat,Katze\n"))) == [("cat", "Katze")]
    named = write(tmp_path / "n.csv", "id,label,text\n7,good,Fine.\n")
    assert [(one.text, one.label) for one in labelled_texts(named)] == [("Fine.", "good")]
    with pytest.raises(DataError, match="line 2 has 3 columns, the header has 2"):
        list(pairs(write(tmp_path / "b.csv", "en,de\na,b,c\n")))
    with pytest.raises(DataError, match="'label' is missing"):
        list(labelled_texts(write(tmp_path / "u.csv", "id,review,stars\n1,Fine.,5\n")))


@pytest.mark.parametrize(
    ("name", "line", "problem"),
    [
        ("f.tsv", "no tab", "line 2 has no tab"),
        ("f.tsv", "", "line 2 has no tab"),
        ("f.jsonl", "{", "line 2 is not JSON"),
        ("f.jsonl", "", "line 2 is not JSON"),
        ("f.jsonl", "[" * 100_000, "line 2 is not JSON"),
        ("f.jsonl", '["a", "b"]', "line 2 is JSON, but not an object"),
        ("f.jsonl", '{"source": "a"}', "line 2: 'target' is missing"),
        ("f.jsonl", '{"source": "a", "target": 3}', "line 2: 'target' is not a text"),
        (
            "f.jsonl",
            '{"source": "\\ud800", "target": "b"}',
            "line 2 is not JSON: it holds half a character",
        ),
    ],
)
def test_bad_records_name_file_and_line(name: str, line: str, problem: str, tmp_path: Path) -> None:
    good = "a\tb\n" if name.endswith("tsv") else '{"source": "a", "target": "b"}\n'
    path = write(tmp_path / name, good + line + "\n" + good)
    reader = pairs(path)
    assert next(reader) == ("a", "b")
    with pytest.raises(DataError) as caught:
        next(reader)
    assert f"{path}, {problem}" in caught.value.problem
    assert caught.value.repair


@pytest.mark.parametrize(("left", "right"), [(3, 2), (2, 3), (10, 1), (1, 0), (0, 4)])
def test_files_of_different_length(left: int, right: int, tmp_path: Path) -> None:
    source, target = write(tmp_path / "en", "x\n" * left), write(tmp_path / "de", "y\n" * right)
    (shorter, few), (longer, _) = sorted(
        [(source, left), (target, right)], key=lambda side: side[1]
    )
    reader = pairs(source, target)
    assert [next(reader) for _ in range(few)] == [("x", "y")] * few
    with pytest.raises(DataError) as caught:
        next(reader)
    assert caught.value.problem == f"{shorter} ends at line {few}, {longer} has more lines"
    assert "line n" in caught.value.repair


def test_empty_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = write(tmp_path / "empty.tsv", "")
    with pytest.raises(DataError, match=r"empty\.tsv is empty"):
        list(pairs(empty))
    with pytest.raises(
        DataError, match=r"nothing to read: .*empty\.tsv and .*empty\.tsv are empty"
    ):
        list(pairs(empty, empty))
    feed(monkeypatch, b"")
    with pytest.raises(DataError, match="standard input is empty"):
        list(pairs("-", format="jsonl"))


def test_choices_that_do_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "f.txt", "a\n")
    with pytest.raises(SettingError, match="did you mean 'jsonl'"):
        list(pairs(path, format="json"))
    with pytest.raises(SettingError, match=r"f\.txt holds one side .*\n.*target file too"):
        list(pairs(path))
    with pytest.raises(SettingError, match="standard input holds one side"):
        list(pairs("-"))
    with pytest.raises(SettingError, match="both sides are standard input"):
        list(pairs("-", "-"))
    with pytest.raises(SettingError, match="two files are read as text, not as tsv"):
        list(pairs(path, path, format="tsv"))


def test_commands_from_a_pipe_are_all_read() -> None:
    """Their first line says what they are, and a pipe gives it once."""
    read, written = os.pipe()
    os.write(written, b"IN: jump twice OUT: I_JUMP I_JUMP\nIN: walk OUT: I_WALK\n")
    os.close(written)
    try:
        found = list(pairs(f"/dev/fd/{read}"))
    finally:
        os.close(read)
    assert found == [("jump twice", "I_JUMP I_JUMP"), ("walk", "I_WALK")]
