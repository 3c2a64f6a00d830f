"""Corpora of many files: every way to name and to store them gives the same text."""

from __future__ import annotations

import gzip
import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from regard.data import text_files
from regard.data.file_access import below, expand, split_location
from regard.data.labelled import labelled_texts
from regard.system.errors import DataError, SettingError

LINES = [f"line {i} ä" for i in range(30)]
PAIRS = [(f"source {i}", f"Ziel {i}") for i in range(30)]


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write(tmp_path / "shards" / "a.txt", LINES[:10])
    write(tmp_path / "shards" / "b.txt.gz", LINES[10:20])
    write(tmp_path / "shards" / "more" / "c.txt", LINES[20:])
    write(tmp_path / "shards" / ".hidden.txt", ["not this"])
    write(tmp_path / "shards" / "README.md", ["nor this"])
    return tmp_path / "shards"


# --- locations ---


def test_folders_globs_and_lists_are_one_text(shards: Path) -> None:
    a = shards / "a.txt"
    b = shards / "b.txt.gz"
    c = shards / "more" / "c.txt"
    for location in (shards, f"{a},{b}, {c}", f"{shards}/*.txt*,{c}", f"{shards}/**/[abc].txt*"):
        assert list(text_files.lines(location)) == LINES
    assert "".join(text_files.text(shards)) == "".join(line + "\n" for line in LINES)


def test_a_comma_in_a_name_is_no_list(tmp_path: Path) -> None:
    path = write(tmp_path / "one,two.txt", LINES)
    assert split_location(path) == [str(path)]
    assert list(text_files.lines(path)) == LINES


def test_locations_below_a_folder() -> None:
    assert below("/data", "a.txt,s3://bucket/b.txt,/other/c.txt") == (
        "/data/a.txt,s3://bucket/b.txt,/other/c.txt"
    )


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="directory without files"):
        expand(tmp_path / "empty")
    with pytest.raises(DataError, match="is no file's name"):
        expand(f"{tmp_path}/*.txt")


def test_shards_of_both_sides_go_together(tmp_path: Path) -> None:
    for number, part in enumerate((PAIRS[:12], PAIRS[12:])):
        write(tmp_path / f"{number}.en", [source for source, _ in part])
        write(tmp_path / f"{number}.de.gz", [target for _, target in part])
    assert list(text_files.pairs(f"{tmp_path}/*.en", f"{tmp_path}/*.de.gz")) == PAIRS
    with pytest.raises(DataError, match="2 source files for 1 target files"):
        list(text_files.pairs(f"{tmp_path}/*.en", f"{tmp_path}/0.de.gz"))


def test_pairs_of_several_files_and_formats(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", ["\t".join(pair) for pair in PAIRS[:10]])
    records = [json.dumps({"source": source, "target": target}) for source, target in PAIRS[10:]]
    write(tmp_path / "b.jsonl.gz", records)
    assert list(text_files.pairs(tmp_path)) == PAIRS
    write(tmp_path / "c.txt", ["one side"])
    with pytest.raises(SettingError, match="one side of the pairs"):
        list(text_files.pairs(tmp_path))


# --- compression and tables ---


def test_zstandard(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    data = "".join(line + "\n" for line in LINES).encode()
    path = tmp_path / "a.txt.zst"
    with arrow.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(data)
    whole = path.read_bytes()
    assert list(text_files.lines(path)) == LINES
    path.write_bytes(whole + whole)  # frames one after the other, as `cat` joins files
    assert list(text_files.lines(path)) == LINES + LINES
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="Truncated"):
        list(text_files.lines(path))
    # No more than the beginning of the mark: an ordinary text.
    path.write_bytes(b"\x28\xb5"[:1])
    assert list(text_files.lines(path)) == ["("]


def table(columns: dict[str, list[Any]]) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


def write_table(content: Any, path: Path) -> Path:
    import pyarrow.feather
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(content, path, row_group_size=7)
    else:
        with pyarrow.ipc.new_file(str(path), content.schema) as writer:
            writer.write_table(content, max_chunksize=7)
    return path


def save_dataset(content: Any, folder: Path, features: dict[str, Any] | None = None) -> Path:
    """As `datasets.Dataset.save_to_disk` does: Arrow streams, and a list of them."""
    import pyarrow

    folder.mkdir(parents=True)
    half = content.num_rows // 2
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (content.slice(0, half), content.slice(half)), strict=True):
        with pyarrow.ipc.new_stream(str(folder / name), part.schema) as writer:
            writer.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features or {}}))
    return folder


def test_tables_give_the_same_text(tmp_path: Path) -> None:
    content = table({"text": LINES, "id": list(range(30))})
    for path in (
        write_table(content, tmp_path / "a.parquet"),
        write_table(content, tmp_path / "a.arrow"),
        save_dataset(content, tmp_path / "saved"),
    ):
        assert list(text_files.lines(path)) == LINES
        assert "".join(text_files.text(path)) == "".join(line + "\n" for line in LINES)


def test_a_column_is_chosen_by_name(tmp_path: Path) -> None:
    content = table({"title": ["t"] * 30, "body": LINES})
    path = write_table(content, tmp_path / "a.parquet")
    assert list(text_files.texts(path, "body")) == LINES
    with pytest.raises(DataError, match="no column 'text'") as caught:
        list(text_files.lines(path))
    assert "title, body" in caught.value.repair
    only = write_table(table({"sentence": LINES}), tmp_path / "b.parquet")
    assert list(text_files.lines(only)) == LINES
    jsonl = write(tmp_path / "c.jsonl", [json.dumps({"body": line}) for line in LINES])
    assert list(text_files.texts(jsonl, "body")) == LINES
    missing = write_table(table({"text": ["a", None]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="row 2: 'text' is not a text"):
        list(text_files.lines(missing))


def test_pairs_of_tables(tmp_path: Path) -> None:
    sources = [source for source, _ in PAIRS]
    targets = [target for _, target in PAIRS]
    plain = write_table(table({"source": sources, "target": targets}), tmp_path / "a.parquet")
    assert list(text_files.pairs(plain)) == PAIRS
    named = write_table(table({"de": targets, "en": sources}), tmp_path / "b.parquet")
    assert list(text_files.pairs(named, languages=("en", "de"))) == PAIRS
    nested = table({"translation": [{"en": s, "de": t} for s, t in PAIRS]})
    saved = save_dataset(nested, tmp_path / "saved" / "train")
    assert list(text_files.pairs(saved, languages=("en", "de"))) == PAIRS
    # A folder of splits: train is the one to train on.
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert list(text_files.pairs(tmp_path / "saved", languages=("en", "de"))) == PAIRS
    sides = [write_table(table({"text": side}), tmp_path / f"{i}.parquet")
             for i, side in enumerate((sources, targets))]  # fmt: skip
    assert list(text_files.pairs(*sides)) == PAIRS


def test_labels_of_a_saved_dataset_have_their_names(tmp_path: Path) -> None:
    content = table({"text": ["good", "bad", "fine"], "label": [1, 0, 1]})
    features = {"label": {"names": ["negative", "positive"], "_type": "ClassLabel"}}
    folder = save_dataset(content, tmp_path / "mood", features)
    examples = list(labelled_texts(folder))
    assert [one.label for one in examples] == ["positive", "negative", "positive"]
    plain = write_table(content, tmp_path / "a.parquet")
    assert [one.label for one in labelled_texts(plain)] == ["1", "0", "1"]


def test_damaged_tables(tmp_path: Path) -> None:
    path = write_table(table({"text": LINES}), tmp_path / "a.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not an intact Parquet or Arrow file"):
        list(text_files.lines(path))
    folder = save_dataset(table({"text": LINES}), tmp_path / "saved")
    for name in ("../a.parquet", 3):
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(DataError, match="not a dataset that `datasets` saved"):
            list(text_files.lines(folder))


# --- remote files ---


def test_remote_files_folders_and_globs() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, part in (("a.txt", LINES[:15]), ("b.txt.gz", LINES[15:])):
        data = "".join(line + "\n" for line in part).encode()
        memory.pipe(f"/corpus/{name}", gzip.compress(data) if name.endswith(".gz") else data)
    for location in ("memory://corpus", "memory://corpus/*.txt*",
                     "memory://corpus/a.txt,memory://corpus/b.txt.gz"):  # fmt: skip
        assert list(text_files.lines(location)) == LINES
    for missing in ("memory://corpus/c.txt", "nosuch://a/b.txt"):
        with pytest.raises(DataError, match="cannot read"):
            list(text_files.lines(missing))


def test_a_web_server(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="fsspec reads http by aiohttp")
    write(tmp_path / "a.txt.gz", LINES)
    write_table(table({"text": LINES}), tmp_path / "b.parquet")
    handler = partial(QuietHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            assert list(text_files.lines(f"{address}/a.txt.gz")) == LINES
            assert list(text_files.lines(f"{address}/b.parquet")) == LINES
            with pytest.raises(DataError, match="cannot read"):
                list(text_files.lines(f"{address}/c.txt"))
        finally:
            server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests have no log."""
