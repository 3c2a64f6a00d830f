"""The decoding step of small models on a CPU as one C++ function (`cpu_step.cpp`), and what greedy
and beam search take from its logits.

The source is compiled on first use, for this machine, into the cache folder: seconds, once. Where
there is no compiler, the ordinary operators are called.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.core.amx import SlowerKernelsWarning
from regard.core.feedforward import ACTIVATION_NAMES
from regard.core.norm import Norm, kernel_norm
from regard.core.quantized_linear import Int8, PackedFloat32, PackedWeight
from regard.system import disk

SOURCE = Path(__file__).with_suffix(".cpp")
# Neither errno nor traps: nothing reads them, and without them roundings are vector instructions.
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-std=c++17", "-shared", "-fPIC"]
VECTORS = (1, 2, 4, 8, 16)  # of which a key may consist
STOPS = ("full", "likely", "certain")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh")


class Matrix(ctypes.Structure):
    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
    )


class NormParameters(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("eps", c_double), ("rms", c_int64))


class AttentionParameters(ctypes.Structure):
    _fields_ = (
        ("project", Matrix),
        ("output", Matrix),
        ("norm", NormParameters),
        ("heads", c_int64),
        ("groups", c_int64),
        ("width", c_int64),
        ("scale", c_double),
    )


class BlockParameters(ctypes.Structure):
    _fields_ = (
        ("self", AttentionParameters),
        ("cross", AttentionParameters),
        ("inner", Matrix),
        ("outer", Matrix),
        ("norm", NormParameters),
        ("activation", c_int64),
        ("gated", c_int64),
    )


class ModelParameters(ctypes.Structure):
    _fields_ = (
        ("blocks", POINTER(BlockParameters)),
        ("layers", c_int64),
        ("pre_norm", c_int64),
        ("final", NormParameters),
        ("head", Matrix),
        ("table", c_void_p),
        ("embedding_scale", c_double),
        ("embedding", NormParameters),
        ("d_model", c_int64),
    )


class Buffers(ctypes.Structure):
    _fields_ = (
        ("k", c_void_p),
        ("v", c_void_p),
        ("row", c_int64),
        ("group", c_int64),
        ("position", c_int64),
    )


class LayerBuffers(ctypes.Structure):
    _fields_ = (("past", Buffers), ("memory", Buffers))


class StepState(ctypes.Structure):
    _fields_ = (
        ("layers", POINTER(LayerBuffers)),
        ("rows", c_int64),
        ("columns", c_int64),
        ("position", c_int64),
        ("positions", c_void_p),
        ("ancestry", c_void_p),
        ("ancestry_length", c_int64),
        ("position_rows", c_void_p),
        ("sentences", c_int64),
        ("memory_length", c_int64),
        ("memory_mask", c_void_p),
        ("memory_mask_row", c_int64),
    )


class SearchState(ctypes.Structure):
    _fields_ = (
        ("sentences", c_int64),
        ("width", c_int64),
        ("length", c_int64),
        ("per_row", c_int64),
        ("refilled", c_int64),
        ("stop", c_int64),
        ("best", c_int64),
        ("t", c_void_p),
        ("t_stride", c_int64),
        ("ends", c_void_p),
        ("end_count", c_int64),
        ("divisors", c_void_p),
        ("divisor_count", c_int64),
        ("sentence", c_void_p),
        ("limits", c_void_p),
        ("sums", c_void_p),
        ("tokens", c_void_p),
        ("running", c_void_p),
        ("finished_scores", c_void_p),
        ("finished_sums", c_void_p),
        ("finished_lengths", c_void_p),
        ("finished_ended", c_void_p),
        ("finished_tokens", c_void_p),
        ("parents", c_void_p),
    )


# ------------------------------------------------------------------ the library


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; None, with a warning, where they cannot be compiled."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        warnings.warn(
            SlowerKernelsWarning(
                "no C++ compiler: small models decode at a fraction of the speed they could have"
                "\n  → install one (Debian: apt install g++)"
            ),
            stacklevel=2,
        )
        return None
    identity = (SOURCE.read_bytes(), " ".join([compiler, *FLAGS]).encode(), _processor())
    digest = hashlib.sha256(b"\0".join(identity)).hexdigest()[:16]
    compiled = disk.cache_folder() / "kernels" / f"cpu_step-{digest}.so"
    try:
        if not compiled.exists():
            compiled.parent.mkdir(parents=True, exist_ok=True)
            with disk.atomic_file(compiled) as unfinished:
                command = [compiler, *FLAGS, str(SOURCE), "-o", str(unfinished)]
                subprocess.run(command, check=True, capture_output=True, text=True)
        functions = ctypes.CDLL(str(compiled))
    except (OSError, subprocess.CalledProcessError) as error:
        problem = getattr(error, "stderr", None) or error
        warnings.warn(
            SlowerKernelsWarning(f"the decoding step in C++ was not compiled: {problem}"),
            stacklevel=2,
        )
        return None
    for name in ("step", "top", "take_best", "advance", "pack_float32", "pack_int8"):
        getattr(functions, name).restype = None
    return functions


def _processor() -> bytes:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor().encode()
    return "".join(dict.fromkeys(x for x in lines if x.startswith(("flags", "Features")))).encode()


# ------------------------------------------------------------------ parameters


class Packer:
    """Lays out the parameters of a model as the functions read them, and keeps what they point
    to."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self.functions = functions
        self.tensors: list[Tensor] = []

    def address(self, x: Tensor | None) -> int | None:
        """The address of a tensor that lives as long as this object."""
        if x is None:
            return None
        x = x.detach().float().contiguous()
        self.tensors.append(x)
        return x.data_ptr()

    def takes(self, packed: PackedWeight | None) -> bool:
        """Whether this machine has the products of these weights."""
        has_int8 = isinstance(packed, Int8) and bool(self.functions.has_int8())
        return has_int8 or isinstance(packed, PackedFloat32)

    def matrix(self, packed: PackedWeight | None) -> Matrix:
        """Packed weights, laid out for the functions."""
        if isinstance(packed, PackedFloat32):
            weight = packed.weight.to_dense().contiguous()
            outputs, inputs = weight.shape
            panels = self._panels(outputs, inputs, torch.float32)
            self.functions.pack_float32(*_pointers(weight), outputs, inputs, *_pointers(panels))
            bias = self._padded(packed.bias, len(panels))
            return Matrix(panels.data_ptr(), None, None, bias, inputs, outputs)
        assert isinstance(packed, Int8)
        rounded, offsets = torch.ops.quantized.linear_unpack(packed.packed)
        levels = rounded.int_repr().contiguous()
        outputs, inputs = levels.shape
        panels = self._panels(outputs, inputs, torch.int8)
        sums = torch.empty(len(panels), dtype=torch.int32)
        self.tensors.append(sums)
        self.functions.pack_int8(*_pointers(levels), outputs, inputs, *_pointers(panels, sums))
        scales = self._padded(rounded.q_per_channel_scales(), len(panels))
        bias = self._padded(offsets, len(panels))
        return Matrix(panels.data_ptr(), scales, sums.data_ptr(), bias, inputs, outputs)

    def _padded(self, x: Tensor | None, length: int) -> int | None:
        if x is None:
            return None
        return self.address(nn.functional.pad(x.detach().float(), (0, length - len(x))))

    def _panels(self, outputs: int, inputs: int, dtype: torch.dtype) -> Tensor:
        panel = 2 * self.functions.lanes()
        panels = torch.empty(-(-outputs // panel) * panel, inputs, dtype=dtype)
        self.tensors.append(panels)
        return panels

    def norm(self, part: Norm | None) -> NormParameters:
        if part is None:
            return NormParameters()
        kind, weight, bias, eps, offset = kernel_norm(part)
        gain = self.address(weight + offset)
        return NormParameters(gain, self.address(bias), eps, kind == "rms")


def activation_code(function: object) -> int:
    """The number of an activation function."""
    return ACTIVATIONS.index(ACTIVATION_NAMES[function])  # type: ignore[index]


def _pointers(*tensors: Tensor) -> Sequence[c_void_p]:
    return [c_void_p(x.data_ptr()) for x in tensors]


# ------------------------------------------------------------------ calls


def step(model: ModelParameters, state: StepState, tokens: Tensor, vocabulary: int) -> Tensor:
    """tokens [rows, 1] → logits [rows, 1, V]; the caches of the state take in the new position."""
    functions = library()
    assert functions is not None
    tokens = tokens.contiguous()
    logits = torch.empty(tokens.shape[0], 1, vocabulary)
    functions.step(ctypes.byref(model), ctypes.byref(state), *_pointers(tokens, logits))
    return logits


def reads(logits: Tensor) -> bool:
    """Whether `top` and `take_best` can read these logits [rows, V]."""
    return (
        logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.is_contiguous()
        and not logits.requires_grad
        and library() is not None
    )


def top(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `topk.top_tokens`."""
    functions = library()
    assert functions is not None
    rows, size = logits.shape
    values = torch.empty(rows, count)
    tokens = torch.empty(rows, count, dtype=torch.long)
    normalizers = torch.empty(rows)
    sizes = (c_int64(rows), c_int64(size), c_int64(count))
    functions.top(*_pointers(logits), *sizes, *_pointers(values, tokens, normalizers))
    return values, tokens, normalizers


def take_best(
    logits: Tensor,
    end: int,
    t: Tensor,
    limits: Tensor,
    ended: Tensor,
    totals: Tensor,
    tokens: Tensor,
    last: Tensor,
) -> None:
    """As `kernels.topk.take_best`, on a CPU."""
    functions = library()
    assert functions is not None
    rows, size = logits.shape
    sizes = (c_int64(rows), c_int64(size), c_int64(end))
    own_steps = c_int64(int(t.shape[0] > 1))  # whether rows are at different steps
    functions.take_best(
        *_pointers(logits), *sizes, *_pointers(t), own_steps,
        *_pointers(limits, ended, totals, tokens), c_int64(tokens.shape[1]), *_pointers(last),
    )  # fmt: skip


def advance(state: SearchState, values: Tensor, tokens: Tensor, normalizers: Tensor) -> None:
    """The new beams from the best tokens of each row [rows, n], as `beam_search._advance`."""
    functions = library()
    assert functions is not None
    functions.advance(ctypes.byref(state), *_pointers(values, tokens, normalizers))
