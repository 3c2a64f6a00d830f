"""Prepared corpora: what was written is read, what was skipped is counted, what is damaged is
noticed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import corpus as module
from regard.data.corpus import Corpus, PreparationReport, prepare, row_chunks, write_chunks
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokenizer_files import translation_tokenizer_from_json
from regard.data.text.tokenizer_training import train_tokenizer
from regard.system.errors import DataError, DiskError

PAIRS = [("a cat", "eine Katze"), ("the dog runs", "der Hund läuft"), ("yes", "ja")]


@cache
def tokenizer(side: int) -> Tokenizer:
    return train_tokenizer([pair[side] for pair in PAIRS], "characters", 100)


def write_rows(
    rows: Iterable[tuple[list[int], ...]], names: list[str], dtypes: list[str], folder: Path
) -> None:
    write_chunks(row_chunks(rows, dtypes), names, dtypes, folder)


def make(folder: Path, pairs: list[tuple[str, str]], max_length: int = 50) -> PreparationReport:
    return prepare(iter(pairs), tokenizer(0), tokenizer(1), folder, max_length=max_length)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.integers(0, 65_535), max_size=9),
            st.lists(st.integers(0, 2**32 - 1), max_size=9),
        ),
        min_size=1,
        max_size=20,
    ),
    buffer=st.integers(1, 30),
)
def test_rows_come_back(
    rows: list[tuple[list[int], list[int]]], buffer: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("c") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", buffer)
        write_chunks(
            row_chunks(rows, ["uint16", "uint32"]), ["narrow", "wide"], ["uint16", "uint32"], folder
        )
    corpus = Corpus.open(folder)
    corpus.verify()
    assert len(corpus) == len(rows)
    for name, side in (("narrow", 0), ("wide", 1)):
        column = corpus.columns[name]
        assert [column[i].tolist() for i in range(len(rows))] == [row[side] for row in rows]
        assert column.lengths.tolist() == [len(row[side]) for row in rows]
    assert corpus.lengths.tolist() == [[len(one), len(other)] for one, other in rows]
    assert column[-1].tolist() == rows[-1][1]
    with pytest.raises(IndexError):
        column[len(rows)]


def test_one_column_is_enough(tmp_path: Path) -> None:
    write_chunks(
        row_chunks((([i, i + 1],) for i in range(4)), ["uint16"]),
        ["text"],
        ["uint16"],
        tmp_path / "c",
    )
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.columns["text"][2].tolist() == [2, 3]
    assert corpus.columns["text"].tokens.dtype == np.uint16
    assert corpus.lengths.shape == (4, 1)


def test_prepare_appends_the_end_and_keeps_the_text(tmp_path: Path) -> None:
    report = make(tmp_path / "c", PAIRS)
    corpus = Corpus.open(tmp_path / "c")
    for i, (one, other) in enumerate(PAIRS):
        assert corpus.source(i).tolist() == [
            *tokenizer(0).encode(one),
            tokenizer(0).special_token_id("eos"),
        ]
        assert corpus.target(i).tolist() == [
            *tokenizer(1).encode(other),
            tokenizer(1).special_token_id("eos"),
        ]
    assert corpus.columns["source"].lengths.sum() == report.tokens["source"]
    assert corpus.columns["target"].lengths.sum() == report.tokens["target"]
    assert corpus.about["report"]["kept"] == report.kept == 3
    assert corpus.about["tokenizers"] == {
        "source": tokenizer(0).fingerprint,
        "target": tokenizer(1).fingerprint,
    }
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize(("extra", "dtype"), [(0, "uint16"), (1, "uint32")])
def test_ids_are_as_narrow_as_the_vocabulary_allows(extra: int, dtype: str, tmp_path: Path) -> None:
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "last": 65_534 + extra}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    big = translation_tokenizer_from_json(json.dumps({"version": "1.0", "model": model}))
    prepare([("last", "yes")], big, tokenizer(0), tmp_path / "c", max_length=9)
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.source(0).tolist() == [65_534 + extra, 1]
    assert [column.tokens.dtype for column in corpus.columns.values()] == [
        np.dtype(dtype),
        np.dtype("uint16"),
    ]


def test_chunks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = PAIRS * 5 + [("", "leer")]
    make(tmp_path / "whole", many)
    monkeypatch.setattr(module, "CHUNK", 4)
    make(tmp_path / "chunks", many)
    assert (
        Corpus.open(tmp_path / "whole").fingerprint == Corpus.open(tmp_path / "chunks").fingerprint
    )


def test_skipped_pairs_are_counted(tmp_path: Path) -> None:
    long = ("yes" * 10, "ja")
    pairs = [
        ("", "ja"),
        long,
        ("yes", " \t"),
        ("yes", "ja"),
        ("yes!", "Öja"),
        ("yes", "ja" * 20),
        *[long] * 5,
    ]
    report = make(tmp_path / "c", pairs, max_length=9)
    assert (report.kept, report.empty, report.too_long) == (2, 2, 7)
    assert report.first_too_long == [2, 6, 7, 8, 9]
    assert report.tokens == {"source": 4 + 5, "target": 3 + 4}
    assert report.unknown == {"source": 1, "target": 1}
    assert str(report).split("\n") == [
        "2 pairs kept: 9 source and 7 target tokens.",
        "2 pairs skipped because a side is empty.",
        "7 pairs skipped because a side is over 9 tokens (lines 2, 6, 7, 8, 9, …).",
        "1 source tokens (11.11%) are not in the vocabulary.",
        "1 target tokens (14.29%) are not in the vocabulary.",
    ]
    assert len(Corpus.open(tmp_path / "c")) == 2


def test_the_limit_counts_the_end_token(tmp_path: Path) -> None:
    assert make(tmp_path / "c", [("yes", "ja")], max_length=4).kept == 1
    with pytest.raises(
        DataError, match="0 have an empty side, 1 are over the limit of 3 tokens"
    ) as caught:
        make(tmp_path / "d", [("yes", "ja")], max_length=3)
    assert "raise max_length" in caught.value.repair


def test_nothing_left_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 have an empty side") as caught:
        make(tmp_path / "c", [("", "ja")])
    assert "give text" in caught.value.repair
    with pytest.raises(DataError, match="is empty"):
        write_rows([], ["text"], ["uint16"], tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_corpus_and_no_litter(tmp_path: Path) -> None:
    make(tmp_path / "c", PAIRS)
    before = Corpus.open(tmp_path / "c").fingerprint

    def breaking() -> Iterator[tuple[str, str]]:
        yield PAIRS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(breaking(), tokenizer(0), tokenizer(1), tmp_path / "c", max_length=50)
    assert Corpus.open(tmp_path / "c").fingerprint == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_nothing_stands_in_place_before_the_end(tmp_path: Path) -> None:
    seen: list[bool] = []

    def watched() -> Iterator[tuple[list[int]]]:
        for i in range(3):
            seen.append((tmp_path / "c").exists())
            yield ([i],)

    write_rows(watched(), ["text"], ["uint16"], tmp_path / "c")
    assert seen == [False] * 3
    assert (tmp_path / "c" / "corpus.json").exists()


def test_files_are_synced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    rename, fsync = os.rename, os.fsync

    def note_sync(handle: int) -> None:
        events.append("sync")
        fsync(handle)

    def note_rename(path: Path, to: Path) -> None:
        events.append("rename")
        rename(path, to)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "rename", note_rename)
    make(tmp_path / "c", PAIRS)
    # Four files of numbers, the manifest (as a file and in the folder), the folder itself; then the
    # rename, then the folder that holds it.
    assert events == ["sync"] * 7 + ["rename", "sync"]


def test_a_corpus_is_replaced_but_nothing_else_is(tmp_path: Path) -> None:
    make(tmp_path / "c", PAIRS)
    mapped = Corpus.open(tmp_path / "c")
    make(tmp_path / "c", PAIRS[:1])
    assert len(Corpus.open(tmp_path / "c")) == 1
    assert mapped.source(2).tolist() == [
        *tokenizer(0).encode("yes"),
        tokenizer(0).special_token_id("eos"),
    ]
    (tmp_path / "c" / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="holds other things") as caught:
        make(tmp_path / "c", PAIRS)
    assert "another folder" in caught.value.repair
    assert (tmp_path / "c" / "thesis.tex").read_text() == "years of work"
    with pytest.raises(DataError, match="holds other things"):
        make(tmp_path / "c" / "thesis.tex", PAIRS)


def test_a_full_disk_is_a_disk_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="disk is full") as caught:
        make(tmp_path / "c", PAIRS)
    assert "free some space" in caught.value.repair
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="Not a directory"):
        make(tmp_path / "file" / "c", PAIRS)


def test_ids_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for bad in (65_536, -1):
        with pytest.raises(OverflowError):
            write_chunks(
                row_chunks([([1],), ([bad],)], ["uint16"]), ["text"], ["uint16"], tmp_path / "c"
            )
    with pytest.raises(ValueError, match="zip"):
        write_rows([([1], [2])], ["text"], ["uint16"], tmp_path / "c")


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    make(tmp_path / "a", PAIRS)
    make(tmp_path / "b", PAIRS)
    make(tmp_path / "c", PAIRS[::-1])
    a, b, c = (Corpus.open(tmp_path / name).fingerprint for name in "abc")
    assert a == b != c


def test_a_folder_without_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"holds no prepared corpus: No such file.*corpus\.json"
    ) as caught:
        Corpus.open(tmp_path)
    assert "prepare" in caught.value.repair


@pytest.mark.parametrize(
    "name", ["source.tokens", "target.tokens", "source.offsets", "target.offsets"]
)
def test_damaged_files_are_noticed(name: str, tmp_path: Path) -> None:
    make(tmp_path / "c", PAIRS)
    file = tmp_path / "c" / name
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    with pytest.raises(
        DataError, match=f"{name} has {len(good) - 1} bytes instead of {len(good)}"
    ) as caught:
        Corpus.open(tmp_path / "c")
    assert "prepare it again" in caught.value.repair
    middle = len(good) // 2
    file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    with pytest.raises(DataError, match="content is not what was written"):
        Corpus.open(tmp_path / "c").verify()
    if name.endswith("offsets"):
        file.write_bytes(good[:-8] + bytes(8))
        with pytest.raises(DataError, match="does not fit"):
            Corpus.open(tmp_path / "c")
    file.unlink()
    with pytest.raises(DataError, match=f"{name}: No such file"):
        Corpus.open(tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{", "not JSON"),
        ("[]", "does not describe"),
        ("{}", "does not describe"),
        ({"format": 99}, "does not describe"),
        ({"columns": 3}, "does not describe"),
        (
            {"columns": {"../source": {"dtype": "uint16", "rows": 3, "tokens": 3}}},
            "does not describe",
        ),
        ({"columns": {"source": {"dtype": "object", "rows": 3, "tokens": 3}}}, "does not describe"),
        (
            {"columns": {"source": {"dtype": "uint16", "rows": 3, "tokens": "3"}}},
            "source.tokens has",
        ),
        ({"columns": {"source": {"dtype": "uint16", "rows": 3}}}, "does not describe"),
        ({"columns": {}}, "does not describe"),
        ({"about": None}, "does not describe"),
    ],
)
def test_damaged_manifests_are_noticed(
    change: str | dict[str, object], said: str, tmp_path: Path
) -> None:
    make(tmp_path / "c", PAIRS)
    file = tmp_path / "c" / "corpus.json"
    file.write_text(
        change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change)
    )
    with pytest.raises(DataError, match=f"c is damaged: .*{said}"):
        Corpus.open(tmp_path / "c")


# --- processes and corpora ---


def test_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 50)
    pairs = [(f"{source} {i}" * (1 + i % 9), f"{target} {i}") for i in range(200)
             for source, target in PAIRS]  # fmt: skip
    reports = []
    for workers in (1, 2, 3):
        folder = tmp_path / str(workers)
        reports.append(
            prepare(pairs, tokenizer(0), tokenizer(1), folder, max_length=40, workers=workers)
        )
    assert reports[0].too_long > 5
    assert reports[1] == reports[0]
    assert reports[2] == reports[0]
    for name in ("corpus.json", "source.tokens", "source.offsets", "target.tokens"):
        contents = {(tmp_path / str(workers) / name).read_bytes() for workers in (1, 2, 3)}
        assert len(contents) == 1


def test_an_error_in_a_process_comes_out_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 5)
    pairs = [("a cat", "eine Katze")] * 90 + [("\ud800", "half a character")]
    with pytest.raises(DataError):
        prepare(pairs, tokenizer(0), tokenizer(1), tmp_path / "c", max_length=40, workers=2)
    assert list(tmp_path.iterdir()) == []


def test_corpora_of_a_mixture_are_stored_one_after_the_other(tmp_path: Path) -> None:
    corpora = {"first": PAIRS[:2], "second": PAIRS[2:]}
    mixture = module.Mixture((3.0, 1.0))
    prepare(corpora, tokenizer(0), tokenizer(1), tmp_path / "c", max_length=50, mixture=mixture)
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.in_blocks
    assert [(span.first, span.rows, span.weight) for span in corpus.spans] == [
        (0, 2, 0.75),
        (2, len(corpus) - 2, 0.25),
    ]
