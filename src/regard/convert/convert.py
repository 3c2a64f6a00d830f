"""regard convert: a folder in, a folder out, and the proof that both are one model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard import __version__, disk
from regard.build import CoreModel
from regard.convert import ctranslate2, onnx
from regard.errors import ModelError, SettingError
from regard.families import folder as folders
from regard.families.folder_write import SHARD, write_model
from regard.parameter_count import parameter_count
from regard.verify.invariants import Comparison, Finding
from regard.verify.random_inputs import padding, random_batch, run

# What belongs to a model beside its weights: data only, never code.
BESIDE = (
    "generation_config.json", "tokenizer.json", "target_tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "target_vocab.json",
    "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model", "source.spm", "target.spm",
    "preprocessor_config.json", "processor_config.json", "normalizer.json", "chat_template.jinja", "README.md",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json",
)  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """Where it went, what is there, and how it compares."""

    folder: Path
    format: str
    files: dict[str, int]  # bytes
    findings: list[Finding]

    def data(self) -> dict[str, Any]:
        checks = [finding.data() for finding in self.findings]
        return {
            "out": str(self.folder),
            "format": self.format,
            "files": self.files,
            "checks": checks,
        }


def convert(
    source: str | Path, out: str | Path, to: str = "huggingface", *, shard: int = SHARD
) -> Converted:
    """Writes the model of `source` to the new folder `out`: all of it or nothing."""
    source, out = Path(source), Path(out)
    if out.exists():
        raise SettingError(
            f"{out} exists, and nothing is overwritten", "give a new folder, or remove that one"
        )
    writers: dict[str, Writer] = {
        "huggingface": _huggingface,
        "regard": _own,
        "ctranslate2": _ctranslate2,
        "onnx": _onnx,
    }
    if to not in writers:
        raise SettingError(f"there is no format {to!r}", f"known: {', '.join(writers)}")
    model, opened = folders.open_model(source)
    compare = writers[to](source, out, model, opened, shard)
    files = {
        str(path.relative_to(out)): path.stat().st_size
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    return Converted(out, to, files, compare())


Writer = Callable[[Path, Path, CoreModel, folders.ModelFolder, int], Callable[[], list[Finding]]]


def _huggingface(
    source: Path, out: Path, model: CoreModel, opened: folders.ModelFolder, shard: int
) -> Callable[[], list[Finding]]:
    kind = None if opened.kind == "regard" else opened.kind
    said = folders.describe(opened.spec, opened.ids, opened.positions, kind)["model_type"]
    if said == "regard":
        raise ModelError(
            "no family of Hugging Face's has all the choices of this model",
            "use --to regard, our own format",
        )
    return _folder(source, out, model, opened, said, shard)


def _own(
    source: Path, out: Path, model: CoreModel, opened: folders.ModelFolder, shard: int
) -> Callable[[], list[Finding]]:
    return _folder(source, out, model, opened, "regard", shard)


def _folder(
    source: Path, out: Path, model: CoreModel, opened: folders.ModelFolder, kind: str, shard: int
) -> Callable[[], list[Finding]]:
    with disk.committing(out) as temporary:
        write_model(temporary, opened, kind=kind, shard=shard)
        _beside(source, temporary, opened, out.name, kind)
    return lambda: _reopened(out, model, opened)


def _beside(source: Path, out: Path, opened: folders.ModelFolder, name: str, kind: str) -> None:
    _copy(source, out, BESIDE)
    if opened.ids is not None and not (out / "generation_config.json").exists():
        disk.write_json(out / "generation_config.json", folders.generation_config(opened.ids))
    if not (out / "README.md").exists():
        disk.write_file(out / "README.md", _card(name, kind, opened))


def _copy(source: Path, out: Path, files: Iterable[str]) -> None:
    for file in files:
        if (source / file).is_file():
            (out / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / file, out / file)


def _card(name: str, kind: str, opened: folders.ModelFolder) -> str:
    library = "regard" if kind == "regard" else "transformers"
    return (
        f"---\nlibrary_name: {library}\n---\n\n# {name}\n\n"
        f"A {type(opened.spec).__name__} of the family {kind}, {parameter_count(opened.spec):,} parameters, written by "
        f"regard {__version__}. `regard show FOLDER` prints its architecture, `regard verify FOLDER` checks it.\n"
    )


def _reopened(out: Path, model: CoreModel, opened: folders.ModelFolder) -> list[Finding]:
    """The written folder, read again: the same tensors, and the same outputs but for the order of sums, which depends on
    where in memory they lie."""
    again, other = folders.open_model(out)
    same = other.weights.keys() == opened.weights.keys() and all(
        other.weights[name].dtype == tensor.dtype and torch.equal(other.weights[name], tensor)
        for name, tensor in opened.weights.items()
    )
    batch = random_batch(opened.spec, padding(opened.config))
    found, wanted = run(again, batch), run(model, batch)
    outputs = Comparison(1e-6)(
        "outputs reopened", *((n, found[n].tensor, wanted[n].tensor) for n in wanted)
    )
    return [
        Finding(
            "tensors reopened", 0.0 if same else float("inf"), 0.0, f"{len(opened.weights)} of them"
        ),
        outputs,
    ]


def _ctranslate2(
    source: Path, out: Path, model: CoreModel, opened: folders.ModelFolder, shard: int
) -> Callable[[], list[Finding]]:
    with disk.committing(out) as temporary:
        written = ctranslate2.write(temporary, source, model, opened)
        _copy(source, temporary, BESIDE)
    return lambda: ctranslate2.compare(out, written, model, opened)


def _onnx(
    source: Path, out: Path, model: CoreModel, opened: folders.ModelFolder, shard: int
) -> Callable[[], list[Finding]]:
    with disk.committing(out) as temporary:
        onnx.write(temporary, model, opened)
        _copy(source, temporary, ("config.json", *BESIDE))
    return lambda: onnx.compare(out, model, opened)
