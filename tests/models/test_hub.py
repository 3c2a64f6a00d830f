"""Fetching by name from a server on this machine: only what can be read, whole, and from where it
broke off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import regard
from regard import cli
from regard.system.errors import CheckpointError, ModelError, RegardError

transformers = pytest.importorskip("transformers")

NAME = "someone/tiny-bert"


class Hub(ThreadingHTTPServer):
    """Serves what `files` holds under /owner/name/resolve/main; breaks off after `patience` bytes
    of a file, if told to.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.etag, self.patience = files, '"one"', 10**9
        self.asked: list[str] = []
        self.ranges: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        start = f"/{NAME}/resolve/main/"
        name = self.path.removeprefix(start)
        self.server.asked.append(name)
        content = self.server.files.get(name) if self.path.startswith(start) else None
        if content is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        begin = 0
        if wanted and self.headers.get("If-Range") == self.server.etag:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.server.ranges.append(wanted)
            if begin >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.send_header("ETag", self.server.etag)
        self.end_headers()
        self.wfile.write(content[begin : begin + self.server.patience])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=19,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ndog\n")
    (tmp_path / "theirs/pytorch_model.bin").write_bytes(b"never")
    (tmp_path / "theirs/modeling.py").write_bytes(b"never")
    server = Hub({path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()})
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


def place(tmp_path: Path) -> Path:
    return tmp_path / "cache/someone--tiny-bert"


def test_only_when_asked(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"the folder someone/tiny-bert does not exist\n.*download=True"
    ):
        regard.load(NAME)
    assert not hub.asked
    with pytest.raises(ModelError, match="not a model or run folder"):
        regard.load(tmp_path / "nothing", download=True)
    assert not hub.asked


def test_fetched_once_and_only_what_is_read_here(hub: Hub, tmp_path: Path) -> None:
    told: list[str] = []
    held = regard.load(NAME, download=True, say=told.append)
    assert held.embed("dog").shape == (12,)  # type: ignore[attr-defined]
    fetched = sorted(path.name for path in place(tmp_path).rglob("*") if path.is_file())
    assert fetched == ["config.json", "model.safetensors", "vocab.txt"]
    assert not {"pytorch_model.bin", "modeling.py"} & {*hub.asked}
    assert [line.split()[1].split("/")[-1].rstrip(",") for line in told] == [
        "config.json",
        "model.safetensors",
        "vocab.txt",
    ]
    assert all(line.endswith("MB") for line in told)
    asked = len(hub.asked)
    again = regard.load(NAME, download=True, say=told.append)
    assert len(hub.asked) == asked
    assert told[-1].endswith(str(place(tmp_path)))
    assert again.spec == held.spec
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [place(tmp_path).name]


def test_a_file_that_broke_off_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.patience = 2000
    with pytest.raises(ModelError, match="try again"):
        regard.load(NAME, download=True, say=lambda text: None)
    assert not place(tmp_path).exists()
    hub.patience = 10**9
    told: list[str] = []
    regard.load(NAME, download=True, say=told.append)
    assert hub.ranges == ["bytes=2000-"]
    assert any("from 0.0 MB on" in line for line in told)
    assert (place(tmp_path) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_another_file_under_the_same_name_begins_anew(hub: Hub, tmp_path: Path) -> None:
    hub.patience = 2000
    with pytest.raises(ModelError):
        regard.load(NAME, download=True, say=lambda text: None)
    hub.patience, hub.etag = 10**9, '"two"'
    regard.load(NAME, download=True, say=lambda text: None)
    assert not hub.ranges
    assert (place(tmp_path) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_shards(hub: Hub, tmp_path: Path) -> None:
    transformers.BertModel.from_pretrained(tmp_path / "theirs").save_pretrained(
        tmp_path / "parts", max_shard_size="3KB"
    )
    parts = {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    assert "model.safetensors" not in parts
    hub.files = parts
    held = regard.load(NAME, download=True, say=lambda text: None)
    stored = regard.load(tmp_path / "theirs")
    weight = "input.table.weight"
    assert torch.equal(held.model.get_parameter(weight), stored.model.get_parameter(weight))
    (place(tmp_path)).rename(tmp_path / "aside")
    index = parts["model.safetensors.index.json"].replace(b"model-00001", b"../../model-00001")
    hub.files = {**parts, "model.safetensors.index.json": index}
    with pytest.raises(CheckpointError, match="index"):
        regard.load(NAME, download=True, say=lambda text: None)


@pytest.mark.parametrize(
    ("missing", "word"),
    [("config.json", "no public config.json"), ("model.safetensors", "may be pickled")],
)
def test_what_is_not_there(missing: str, word: str, hub: Hub, tmp_path: Path) -> None:
    del hub.files[missing]
    with pytest.raises(ModelError, match=word):
        regard.load(NAME, download=True, say=lambda text: None)
    assert not place(tmp_path).exists()
    assert "pytorch_model.bin" not in hub.asked


def test_no_answer(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="connection"):
        regard.load(NAME, download=True, say=lambda text: None)
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(ModelError, match="https"):
        regard.load(NAME, download=True, say=lambda text: None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", NAME, "--json"],
        ["verify", NAME, "--json"],
        ["convert", NAME, "written", "--json"],
        ["evaluate", NAME, "--data", "data.tsv"],
        ["finetune", NAME, "--task", "classify", "--data", "data.tsv", "--epochs", "1"],
        ["train", "--base", NAME, "--objective", "classify", "--text", "data.tsv", "--steps", "1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_fetch_a_name_when_asked(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.tsv").write_text("dog\tgood\ndog dog\tbad\n" * 4)
    refused = CliRunner().invoke(cli.regard, arguments)
    assert isinstance(refused.exception, RegardError)
    assert not hub.asked
    done = CliRunner().invoke(cli.regard, [*arguments, "--download"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert place(tmp_path).is_dir()


def test_prune_fetches_a_name_and_says_what_it_cannot_prune(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.regard, ["prune", NAME, "--heads", "1", "--download"])
    # The model here is a classifier, which has no loss to rank heads by.
    assert isinstance(done.exception, ModelError)
    assert "neither translates nor generates" in str(done.exception)
    assert place(tmp_path).is_dir()


def test_download_without_a_base_is_refused() -> None:
    refused = CliRunner().invoke(cli.regard, ["train", "--download"])
    assert isinstance(refused.exception, RegardError)
    assert "--base" in str(refused.exception)
