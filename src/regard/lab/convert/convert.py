"""regard convert: a folder in, a folder out, and the check that both are one model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard import __version__
from regard.builder.parameter_count import parameter_count
from regard.core.finite_outputs import require_finite_weights
from regard.families import folder as folders
from regard.families.folder import SHARD_SIZE, write_model
from regard.lab.convert import ctranslate2, ctranslate2_check, onnx
from regard.lab.verify.invariants import Finding, OutputComparison
from regard.lab.verify.outputs import run
from regard.lab.verify.random_inputs import pad_token_id, random_batch
from regard.system import disk
from regard.system.errors import ModelError, SettingError
from regard.wirings.core_model import CoreModel

# The files of a model besides config and weights: data only, never code.
OTHER_FILES = (
    # tokenizers
    "tokenizer.json",
    "target_tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "target_vocab.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
    "normalizer.json",
    "chat_template.jinja",
    # generation, and the front ends of images and sound
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    # sentence-transformers
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    # the model card
    "README.md",
)


@dataclass(frozen=True)
class Converted:
    """The result of a conversion: the files that were written, and how the models compare."""

    folder: Path
    format: str
    files: dict[str, int]  # sizes in bytes
    findings: list[Finding]

    def data(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "out": str(self.folder),
            "format": self.format,
            "files": self.files,
            "checks": [finding.data() for finding in self.findings],
        }


@dataclass(frozen=True)
class Conversion:
    """What a writer of some format is given."""

    source: Path
    out: Path
    model: CoreModel
    opened: folders.ModelFolder
    shard: int  # the largest size of a file of weights, in bytes


# Writes the folder, and returns the check of what it wrote.
Writer = Callable[[Conversion], Callable[[], list[Finding]]]


def convert(
    source: str | Path, out: str | Path, to: str = "huggingface", *, shard: int = SHARD_SIZE
) -> Converted:
    """Writes the model of `source` to the new folder `out`: all of it or nothing."""
    out = Path(out)
    disk.require_absent(out, "choose the name of a new folder")
    if to not in WRITERS:
        raise SettingError(f"unknown format {to!r}", f"use one of: {', '.join(WRITERS)}")
    # Those of the check too: without it a converted folder would be left unchecked.
    require_packages = REQUIRED_PACKAGES.get(to)
    if require_packages is not None:
        require_packages()
    model, opened = folders.open_model(source)  # data only: no code of the folder runs
    require_finite_weights(model, str(source))
    check = WRITERS[to](Conversion(Path(source), out, model, opened, shard))
    files = {
        str(path.relative_to(out)): path.stat().st_size
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    return Converted(out, to, files, check())


# ------------------------------------------------------------------ model folders


def _to_huggingface(conversion: Conversion) -> Callable[[], list[Finding]]:
    opened = conversion.opened
    # A model in our own format may still fit an architecture of Hugging Face's.
    family = None if opened.model_type == "regard" else opened.model_type
    config = folders.describe(opened.spec, opened.ids, opened.positions, family)
    if config["model_type"] == "regard":
        raise ModelError(
            "no Hugging Face architecture supports this model",
            "use --to regard, regard's own format",
        )
    return _to_folder(conversion, config["model_type"])


def _to_regard(conversion: Conversion) -> Callable[[], list[Finding]]:
    return _to_folder(conversion, "regard")


def _to_folder(conversion: Conversion, family: str) -> Callable[[], list[Finding]]:
    # Written to a temporary folder that is renamed when complete.
    with disk.atomic_folder(conversion.out) as temporary:
        write_model(temporary, conversion.opened, model_type=family, shard_size=conversion.shard)
        _copy(conversion.source, temporary, OTHER_FILES)
        generation_config = temporary / "generation_config.json"
        if conversion.opened.ids is not None and not generation_config.exists():
            disk.write_json(generation_config, folders.generation_config(conversion.opened.ids))
        model_card = temporary / "README.md"
        if not model_card.exists():
            disk.write_file(model_card, _model_card(conversion.out.name, family, conversion.opened))
    return lambda: _compare_reopened(conversion)


def _copy(source: Path, out: Path, files: Iterable[str]) -> None:
    for file in files:
        if (source / file).is_file():
            (out / file).parent.mkdir(exist_ok=True)  # 1_Pooling
            shutil.copyfile(source / file, out / file)


def _model_card(name: str, family: str, opened: folders.ModelFolder) -> str:
    library = "regard" if family == "regard" else "transformers"
    architecture = type(opened.spec).__name__
    count = parameter_count(opened.spec)
    return (
        f"---\nlibrary_name: {library}\n---\n\n# {name}\n\n"
        f"A {architecture} of the family {family}, {count:,} parameters, "
        f"written by regard {__version__}. `regard show FOLDER` prints its architecture, "
        "`regard verify FOLDER` checks it.\n"
    )


def _compare_reopened(conversion: Conversion) -> list[Finding]:
    """The written folder, read again: the same tensors, and the same outputs.

    Outputs may differ by the order of sums, which depends on where in memory tensors lie.
    """
    model, reopened = folders.open_model(conversion.out)
    weights = conversion.opened.weights
    same = reopened.weights.keys() == weights.keys() and all(
        reopened.weights[name].dtype == tensor.dtype and torch.equal(reopened.weights[name], tensor)
        for name, tensor in weights.items()
    )
    difference = 0.0 if same else float("inf")
    tensors = Finding("tensors reopened", difference, 0.0, f"{len(weights)} of them")
    batch = random_batch(conversion.opened.spec, pad_token_id(conversion.opened.config))
    actual = run(model, batch)
    expected = run(conversion.model, batch)
    pairs = [(name, actual[name].tensor, expected[name].tensor) for name in expected]
    outputs = OutputComparison(1e-6)("outputs reopened", *pairs)
    return [tensors, outputs]


# ------------------------------------------------------------------ other libraries


def _to_ctranslate2(conversion: Conversion) -> Callable[[], list[Finding]]:
    with disk.atomic_folder(conversion.out) as temporary:
        vocabularies = ctranslate2.write(
            temporary, conversion.source, conversion.model, conversion.opened
        )
        _copy(conversion.source, temporary, OTHER_FILES)
        example = ctranslate2.example(temporary, conversion.opened, vocabularies)
        _describe(conversion, temporary, "ctranslate2", example)
    return lambda: ctranslate2_check.compare(
        conversion.out, vocabularies, conversion.model, conversion.opened
    )


def _to_onnx(conversion: Conversion) -> Callable[[], list[Finding]]:
    with disk.atomic_folder(conversion.out) as temporary:
        onnx.write(temporary, conversion.model, conversion.opened)
        _copy(conversion.source, temporary, ("config.json", *OTHER_FILES))
        _describe(conversion, temporary, "onnx", onnx.example(temporary, conversion.opened))
    return lambda: onnx.compare(conversion.out, conversion.model, conversion.opened)


def _describe(conversion: Conversion, folder: Path, library: str, example: str) -> None:
    """A README with lines that run the model; the card of the source stands beside it."""
    card = folder / "README.md"
    note = ""
    if card.exists():
        card.rename(folder / "MODEL_CARD.md")
        note = " What it was trained on, and how well it does, is in MODEL_CARD.md."
    opened = conversion.opened
    disk.write_file(
        card,
        f"---\nlibrary_name: {library}\n---\n\n# {conversion.out.name}\n\n"
        f"A model of the family {opened.model_type} for {library}, in float32, "
        f"{parameter_count(opened.spec):,} parameters, written by regard {__version__}.{note}\n"
        f"In this folder:\n\n```python\n{example}```\n",
    )


REQUIRED_PACKAGES: dict[str, Callable[[], object]] = {
    "ctranslate2": ctranslate2.library,
    "onnx": onnx.require_packages,
}
WRITERS: dict[str, Writer] = {
    "huggingface": _to_huggingface,
    "regard": _to_regard,
    "ctranslate2": _to_ctranslate2,
    "onnx": _to_onnx,
}
