"""Published figures of other systems, shown beside ours and not measured here.

Each is of one case on one kind of machine, and is shown for no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.lab.bench.report import BenchmarkRow
from regard.system.errors import SettingError

MACHINE = "NVIDIA H200"  # by its driver; its relatives have other names
SOURCE = f"one {MACHINE}, bf16, not in this run; shares are of 772 TFLOP/s, measured there"


@dataclass(frozen=True)
class Figure:
    """A published figure: `case` is what a case must have, `share` is of the peak FLOP/s."""

    case: Mapping[str, Any]
    rate: float  # tokens a second
    share: float | None = None


def _training(model: str, length: int, **more: Any) -> dict[str, Any]:
    return {"model": model, "lengths": "equal", "length": length, "precision": "bf16", **more}


def _decoding(model: str, batch: int) -> dict[str, Any]:
    return {"model": model, "batch": batch, "beam": 1, "prompt_length": 16, "new": 128}


_GPT2 = _training("gpt2", 1024)  # the number of sequences in a batch is not published
_BASE = _training("base", 64, batch_tokens=256 * 64)
PEERS: dict[str, tuple[Figure, ...]] = {
    "nanoGPT": (Figure(_GPT2, 506_000, 0.56),),  # compiled, which is its default
    "nn.Transformer-compiled": (Figure(_BASE, 457_000, 0.22),),
    "transformers-compiled": (
        Figure(_GPT2, 413_000, 0.46),
        Figure(_BASE, 369_000, 0.18),
        Figure(_decoding("gpt2", 1), 648),  # this and the following with a static cache
        Figure(_decoding("gpt2", 32), 18_700),
        Figure(_decoding("llama-7b", 1), 156),
        Figure(_decoding("llama-7b", 16), 1_960),
    ),
}


def split(
    against: list[str], case: object, accelerator: str | None
) -> tuple[list[BenchmarkRow], list[str]]:
    """The rows of peers with published figures, and the peers that are left to be measured.

    Asking for a figure that is not of this very case and machine is an error.
    """
    rows = [_row(peer, case, accelerator) for peer in against if peer in PEERS]
    return rows, [peer for peer in against if peer not in PEERS]


def _row(peer: str, case: object, accelerator: str | None) -> BenchmarkRow:
    for figure in PEERS[peer]:
        if accelerator == MACHINE and _matches(figure, case):
            return BenchmarkRow(peer, figure.rate, 0.0, share=figure.share, published=SOURCE)
    cases = "; ".join(
        ", ".join(f"{key} {value}" for key, value in figure.case.items()) for figure in PEERS[peer]
    )
    raise SettingError(
        f"{peer} cannot be measured here, and has no published figure for this case and machine",
        f"remove it; its published figures are for one {MACHINE}: {cases}",
    )


def _matches(figure: Figure, case: object) -> bool:
    # A key that this kind of case does not have means that the figure is of another benchmark.
    return all(getattr(case, key, None) == value for key, value in figure.case.items())
