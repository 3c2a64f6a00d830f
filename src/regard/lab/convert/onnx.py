"""ONNX: one graph from Hugging Face's inputs to its main outputs, for any batch and length.

Attention is exported as its definition, `scaled_dot_product_attention.explicit`: every runtime has
these operators, and fuses them as it likes.
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
from torch import Tensor, nn

from regard import spec as specs
from regard.builder.parameter_count import parameter_count
from regard.core.mixers import scaled_dot_product_attention
from regard.core.positions.positional_encoding import Sinusoidal
from regard.families import folder as folders
from regard.lab.verify.invariants import Finding, OutputPair, with_kernel
from regard.lab.verify.outputs import forward, run
from regard.lab.verify.parity import float32_comparison, padded_batch
from regard.lab.verify.random_inputs import RandomBatch
from regard.system.errors import ModelError, SettingError
from regard.wirings.core_model import CoreModel, Function

FILE = "model.onnx"
# A protocol buffer holds at most 2 GB; beyond this many bytes weights go into a second file.
LARGE = 1_500_000_000
_NAME = "here = onnxruntime"


# ------------------------------------------------------------------ export


def write(out: Path, model: CoreModel, opened: folders.ModelFolder) -> None:
    """Writes model.onnx, and for large models model.onnx.data beside it."""
    _refuse_recurrent(model)
    require_packages()
    _refuse_chunks_on_a_ring(opened.spec)
    if not opened.spec.front_ends:
        raise ModelError("this format supports models with a front end only", "use --to regard")
    batch = padded_batch(opened)
    dynamic_axes = tuple(_dynamic_axes(batch, opened))
    _fill_sinusoids(model, opened.positions)
    # In float32, four bytes a parameter.
    large = 4 * parameter_count(opened.spec) > LARGE
    with torch.no_grad(), with_kernel(model, scaled_dot_product_attention.explicit), _quiet():
        program = _export(model, batch, dynamic_axes, opened)
        _refuse_fixed_axes(program, dynamic_axes)
        program.save(str(out / FILE), external_data=large)


def _export(
    model: CoreModel,
    batch: RandomBatch,
    dynamic_axes: tuple[Mapping[int, Any], ...],
    opened: folders.ModelFolder,
) -> Any:
    input_names = list(batch.inputs)
    output_names = list(forward(model, batch.inputs))

    def call(model: CoreModel, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = forward(model, dict(zip(input_names, tensors, strict=True)))
        return tuple(output.tensor for output in outputs.values())

    try:
        program = torch.onnx.export(
            Function(model, call).eval(),
            tuple(batch.inputs.values()),
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes={"inputs": dynamic_axes},  # the parameter *inputs of Function.forward
            dynamo=True,
            verbose=False,
        )
    except Exception as error:  # the exporter has many classes of them, none of them for users
        raise ModelError(
            f"the ONNX exporter of PyTorch cannot trace this model: {_first_cause(error)}",
            "use `--to regard`, or torch 2.13, with which all Hugging Face families were exported "
            f"(this is a {type(opened.spec).__name__}, {opened.model_type}, with torch "
            f"{torch.__version__})",
        ) from error
    assert program is not None
    return program


def _first_cause(error: Exception) -> str:
    """The line of the exporter's long report that names the error behind it."""
    report = str(error)
    for line in reversed(report.splitlines()):
        if line.strip().startswith("<class"):
            return line.strip()[:300]
    return report.strip()[:300]


def _fill_sinusoids(model: CoreModel, positions: int) -> None:
    # Sinusoids have no end here; in a graph they are a table.
    for module in model.modules():
        if isinstance(module, Sinusoidal):
            module.rows(positions)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter, which reports every operator that it skips."""
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


def require_packages() -> None:
    """Raises the error of a package that is missing, also of those that only the check needs."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        _import(name)


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise SettingError(
            f"this format needs the package {name}", "pip install onnx onnxscript onnxruntime"
        ) from None


# ------------------------------------------------------------------ models without a graph


def _refuse_recurrent(model: CoreModel) -> None:
    if any(isinstance(part, nn.RNNBase) for part in model.modules()):
        raise ModelError(
            "the ONNX exporter of PyTorch supports recurrent cells for a fixed length only",
            "use `--to regard`, or export a model with attention or convolutions",
        )


def _refuse_chunks_on_a_ring(model: specs.Model) -> None:
    if any(stack.rings for stack in model.stacks.values()):
        raise ModelError(
            "circular chunked attention (Reformer) depends on the input length, which an ONNX "
            "graph cannot express",
            "use `--to regard`, or export a model without such layers",
        )


def _refuse_fixed_axes(program: Any, dynamic_axes: Sequence[Mapping[int, Any]]) -> None:
    """Refuses a graph that works for the lengths of the example only.

    The exporter makes such graphs, without a word, of models that count on a length.
    """
    for graph_input, axes in zip(program.model.graph.inputs, dynamic_axes, strict=True):
        if any(isinstance(graph_input.shape[axis], int) for axis in axes):
            raise ModelError(
                f"the exported ONNX graph supports one size of {graph_input.name} only: "
                f"{graph_input.shape}",
                "use `--to regard`, which supports all sizes",
            )


# ------------------------------------------------------------------ dynamic axes


def _dynamic_axes(batch: RandomBatch, opened: folders.ModelFolder) -> Iterator[dict[int, Any]]:
    """The dimensions of each input that may change, with their limits."""
    model = opened.spec
    # Images have one size, and with it what is said of their patches (which are hidden).
    front_end, *_, last = (*model.front_ends.values(),) * 2
    has_images = model.main_input_name == "pixel_values"
    rows = torch.export.Dim("rows")
    length = _length("length", front_end, opened, least=min(batch.lengths))
    for name, tensor in batch.inputs.items():
        if name in model.vocabularies and name != batch.main:  # a text of another length
            yield {0: rows, 1: _length(f"{name}_length", last, opened)}
        elif name.startswith("static"):  # features of a whole series
            yield {0: rows}
        elif tensor.ndim == 2 and not has_images:  # tokens, segments, samples, and the padding mask
            yield {0: rows, 1: length}
        else:  # images and spectrograms have one size
            yield {0: rows}


def _length(
    name: str,
    part: specs.AnyFrontEnd,
    opened: folders.ModelFolder,
    least: int = 1,
) -> Any:
    if isinstance(part, specs.Waveform):
        # Half of the shortest row: much shorter sound has no position at all.
        return torch.export.Dim(name, min=least // 2)
    match part.position if isinstance(part, specs.Tokens) else None:
        case (
            specs.LearnedPosition(length=length)
            | specs.FixedPosition(length=length)
            | specs.AxialPosition(length=length)
        ):
            return torch.export.Dim(name, max=length)
        case specs.Sinusoidal():
            return torch.export.Dim(name, max=opened.positions)
        case _:
            return torch.export.Dim(name)


# ------------------------------------------------------------------ README

_TOKENS = {
    "input_ids": "numpy.array([ids])",
    "attention_mask": "numpy.ones((1, len(ids)), dtype=numpy.int64)",
    "token_type_ids": "numpy.zeros((1, len(ids)), dtype=numpy.int64)",
}


def example(folder: Path, opened: folders.ModelFolder) -> str:
    """Python that runs the graph once: on a text, or on zeros where it reads something else."""
    lines = ["import numpy", "import onnxruntime", ""]
    inputs = padded_batch(opened).inputs
    if "input_ids" in inputs and (folder / "tokenizer.json").exists():
        lines[2:2] = ["from tokenizers import Tokenizer"]
        lines.append('ids = Tokenizer.from_file("tokenizer.json").encode("This is a text.").ids')
    elif "input_ids" in inputs:
        lines.append("ids = [1, 2, 3]  # of the tokens of a text")
    lines += [f'session = onnxruntime.InferenceSession("{FILE}")', "inputs = {"]
    for name, tensor in inputs.items():
        value = _TOKENS.get(name)
        if name == "decoder_input_ids":
            # Of a generator the first token; a classifier's decoder reads the same text.
            value = "numpy.array([ids])"
            if opened.ids is not None:
                value = f"numpy.array([[{opened.ids.start}]])"
        if value is None:
            dtype = str(tensor.dtype).removeprefix("torch.").replace("bool", "bool_")
            value = f"numpy.zeros({(1, *tensor.shape[1:])}, dtype=numpy.{dtype})"
        lines.append(f'    "{name}": {value},')
    lines += ["}", "for output, value in zip(session.get_outputs(), session.run(None, inputs)):"]
    return "\n".join([*lines, "    print(output.name, value.shape)"]) + "\n"


# ------------------------------------------------------------------ check


def compare(out: Path, model: CoreModel, opened: folders.ModelFolder) -> list[Finding]:
    """What onnxruntime makes of a padded batch, and of each of its rows alone, against ours."""
    runtime = _import("onnxruntime")
    session = runtime.InferenceSession(str(out / FILE), providers=["CPUExecutionProvider"])
    batch = padded_batch(opened)
    expected = run(model, batch)
    compare_outputs = float32_comparison(model, batch, opened.model_type)
    pairs = []
    for name, tensor in _run_session(session, batch).items():
        actual = expected[name]._replace(value=tensor)
        pairs.append((name, actual.without_padding, expected[name].without_padding))
    pairs_alone: list[OutputPair] = []
    for row in range(len(batch.lengths)):
        alone = batch.alone(row)
        if batch.padding_mask is not None:  # the graph has it as an input
            mask = torch.ones_like(alone.inputs[batch.main], dtype=torch.long)
            alone.inputs["attention_mask"] = mask
        expected = run(model, alone)
        for name, tensor in _run_session(session, alone).items():
            pairs_alone.append((name, tensor, expected[name].tensor))
    return [
        compare_outputs(_NAME, *pairs),
        compare_outputs(f"{_NAME}, other shapes", *pairs_alone),
    ]


def _run_session(session: Any, batch: RandomBatch) -> dict[str, Tensor]:
    names = [output.name for output in session.get_outputs()]
    inputs = {each.name: batch.inputs[each.name].numpy() for each in session.get_inputs()}
    arrays = session.run(None, inputs)
    return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}
