"""Forward-pass speed: tokens a second of an encoder over a batch without padding."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import regard
from regard.builder.parameter_count import parameter_count
from regard.lab.bench.models import benchmark_model
from regard.lab.bench.peers import import_peer
from regard.lab.bench.report import BenchmarkReport, machine_name, timing_row
from regard.lab.bench.timing import time_in_turns
from regard.lab.measure.instruments import matrix_rate


@dataclass(frozen=True)
class ForwardCase:
    """One forward pass of `batch` sequences of `length` tokens."""

    model: str = "bert-base"
    batch: int = 8
    length: int = 128
    rounds: int = 9

    def __str__(self) -> str:
        return f"forward {self.model}, batch {self.batch}, {self.length} tokens"


def run(
    case: ForwardCase, against: list[str], device: torch.device, command: str
) -> BenchmarkReport:
    """Times the model as loaded, the same model with packed weights, and the peers."""
    model = benchmark_model(case.model)
    torch.manual_seed(0)
    tokens = torch.randint(4, model.vocabulary, (case.batch, case.length), device=device)
    with tempfile.TemporaryDirectory() as folder:
        path = model.write(Path(folder))
        models: dict[str, Any] = {
            "regard": regard.load(path).to(device),
            # The same weights, packed for inference.
            "regard, frozen": regard.load(path).to(device).prepare_for_inference(),
        }
        if "transformers" in against:
            auto_model = import_peer("transformers").AutoModelForMaskedLM
            models["transformers"] = auto_model.from_pretrained(path).to(device).eval()

    def contender(name: str) -> float:
        with torch.inference_mode():
            logits = models[name](input_ids=tokens)["logits"]
        assert logits.shape == (*tokens.shape, model.vocabulary)
        return float(tokens.numel())

    contenders = {name: partial(contender, name) for name in models}
    timings = time_in_turns(contenders, case.rounds, device)
    limit = matrix_rate(device)
    # A multiplication and an addition for each parameter; attention scores are left out.
    flops_per_token = 2.0 * parameter_count(model.spec)
    rows = [
        timing_row(name, timing, share=timing.rate * flops_per_token / limit)
        for name, timing in timings.items()
    ]
    notes = {"matrix rate": f"{limit / 1e9:,.0f} GFLOP/s"}
    return BenchmarkReport(command, str(case), machine_name(device), "tokens/s", tuple(rows), notes)
