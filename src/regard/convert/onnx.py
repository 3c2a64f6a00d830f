"""ONNX: one graph from Hugging Face's inputs to its main outputs, for any number of rows and any length.

Attention is traced as its definition, `mix.explicit`: every runtime has these operators, and fuses them as it likes.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.build import CoreModel
from regard.core import softmax_attention
from regard.core.positional_encoding import Sinusoidal
from regard.errors import ModelError, SettingError
from regard.families import folder as folders
from regard.model import Function
from regard.parameter_count import parameter_count
from regard.verify.invariants import Finding, with_kernel
from regard.verify.parity import comparison
from regard.verify.random_inputs import Batch, front_end, outputs, padding, random_batch, run

FILE = "model.onnx"
LARGE = 1_500_000_000  # bytes of weights above which a file of protocol buffers cannot hold them
_NAME = "here = onnxruntime"


def write(out: Path, model: CoreModel, opened: folders.ModelFolder) -> None:
    """model.onnx, and model.onnx.data beside it for large models."""
    _refuse_cells(opened.spec)
    _import("onnx")
    _import("onnxscript")
    if isinstance(opened.spec, kinds.Encoder | kinds.Decoder) and opened.spec.stack.rings:
        raise ModelError(
            "the chunks on a ring follow from the length of the input, and a graph is one for all lengths",
            "export a model without such layers, or run this one with regard",
        )
    batch = _batch(opened)
    names, axes = list(batch.given), tuple(_axes(batch, opened))
    _prepare(model, opened.positions)
    large = 4 * parameter_count(opened.spec) > LARGE
    with torch.no_grad(), with_kernel(model, softmax_attention.explicit), _quiet():
        produced = list(outputs(model, batch.given))
        whole = Function(model, lambda model, *given: _call(model, names, given))
        try:
            program = torch.onnx.export(
                whole.eval(),
                tuple(batch.given.values()),
                input_names=names,
                output_names=produced,
                dynamic_shapes={"given": axes},
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # the exporter has many, and its users have none of them
            line = next(
                (
                    line
                    for line in reversed(str(error).splitlines())
                    if line.strip().startswith("<class")
                ),
                str(error),
            )
            raise ModelError(
                f"the ONNX exporter of PyTorch cannot trace this model: {line.strip()[:300]}",
                f"its choices may be beyond the exporter: the families of Hugging Face's that regard opens were traced with "
                f"torch 2.13, and this is a {type(opened.spec).__name__} ({opened.kind}) with {torch.__version__}",
            ) from error
        assert program is not None
        _refuse_fixed(program, axes)
        program.save(str(out / FILE), external_data=large)


def _refuse_fixed(program: Any, axes: Sequence[Mapping[int, Any]]) -> None:
    """The exporter goes on with the lengths of the example where it cannot do otherwise, and does not say so."""
    for given, free in zip(program.model.graph.inputs, axes, strict=True):
        if any(isinstance(given.shape[axis], int) for axis in free):
            raise ModelError(
                f"the ONNX exporter of PyTorch made a graph for {given.name} of one size only: {given.shape}",
                "something in this model counts on that size; `--to regard` writes it for all",
            )


def _refuse_cells(spec: kinds.Model) -> None:
    parts: tuple[Any, ...] = ()
    if isinstance(spec, kinds.SequenceToSequence):
        parts = (spec.encoder, spec.decoder)
    if isinstance(spec, kinds.RecurrentDecoder) or any(
        isinstance(part, kinds.Recurrent) for part in parts
    ):
        raise ModelError(
            "recurrent cells go from place to place, and the ONNX exporter of PyTorch writes that out for one length only",
            "export a model of attention or convolutions; `--to regard` writes this one",
        )


def _call(model: CoreModel, names: Sequence[str], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    found = outputs(model, dict(zip(names, given, strict=True)))
    return tuple(output.tensor for output in found.values())


def compare(out: Path, model: CoreModel, opened: folders.ModelFolder) -> list[Finding]:
    """What onnxruntime makes of a padded batch, and of each of its rows alone, against ours."""
    runtime = _import("onnxruntime")
    session = runtime.InferenceSession(str(out / FILE), providers=["CPUExecutionProvider"])
    produced = [output.name for output in session.get_outputs()]

    def asked(batch: Batch) -> dict[str, Tensor]:
        given = {one.name: batch.given[one.name].numpy() for one in session.get_inputs()}
        return {
            name: torch.from_numpy(array)
            for name, array in zip(produced, session.run(None, given), strict=True)
        }

    batch = _batch(opened)
    wanted, check = run(model, batch), comparison(model, batch, opened.kind)
    found = asked(batch)
    pairs = [
        (name, wanted[name]._replace(tensor=found[name]).seen, wanted[name].seen)
        for name in produced
    ]
    alone: list[tuple[str, Tensor, Tensor]] = []
    for row in range(3):
        one = batch.alone(row)
        if batch.padding_mask is not None:
            one.given["attention_mask"] = torch.ones_like(one.given[batch.main], dtype=torch.long)
        found, like = asked(one), run(model, one)
        alone += [(name, found[name], like[name].tensor) for name in produced]
    return [check(_NAME, *pairs), check(f"{_NAME}, other shapes", *alone)]


def _batch(opened: folders.ModelFolder) -> Batch:
    """Padded, if it can be."""
    pad = padding(opened.config)
    batch = random_batch(opened.spec, pad)
    return (
        batch
        if isinstance(front_end(opened.spec), (kinds.Patches, kinds.Spectrogram))
        else batch.padded(pad)
    )


def _prepare(model: CoreModel, positions: int) -> None:
    """Sinusoids have no end here; in a graph they are a table."""
    for part in model.modules():
        if isinstance(part, Sinusoidal):
            part.rows(positions)


def _axes(batch: Batch, opened: folders.ModelFolder) -> Iterator[dict[int, Any]]:
    """Which dimensions of each input may change, and how far."""
    rows = torch.export.Dim("rows")
    length = _length("length", front_end(opened.spec), opened, least=min(batch.lengths))
    spec = opened.spec
    target = (
        spec.target if isinstance(spec, kinds.EncoderDecoder | kinds.SequenceToSequence) else None
    )
    for name, tensor in batch.given.items():
        if name == "decoder_input_ids" and target is not None:
            yield {0: rows, 1: _length("target_length", target, opened)}
        elif tensor.ndim == 2:
            yield {0: rows, 1: length}
        else:
            yield {0: rows}


def _length(name: str, part: kinds.FrontEnd, opened: folders.ModelFolder, least: int = 1) -> Any:
    if isinstance(part, kinds.Waveform):
        return torch.export.Dim(name, min=least // 2)
    match part.position if isinstance(part, kinds.Tokens) else None:
        case (
            kinds.LearnedPosition(length=length)
            | kinds.FixedPosition(length=length)
            | kinds.AxialPosition(length=length)
        ):
            return torch.export.Dim(name, max=length)
        case kinds.Sinusoidal():
            return torch.export.Dim(name, max=opened.positions)
        case _:
            return torch.export.Dim(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells what it skips; nobody asked."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(None),
            contextlib.redirect_stderr(None),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingError(
            f"this format needs the package {name}", "pip install onnx onnxscript onnxruntime"
        ) from None
