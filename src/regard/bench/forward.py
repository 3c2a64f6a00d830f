"""The speed of one forward pass over a batch, nothing padded: how fast an encoder reads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.bench.models import measured
from regard.bench.peers import library
from regard.bench.report import Report, machine, row
from regard.bench.timing import matrix_rate, turns
from regard.parameter_count import parameter_count


@dataclass(frozen=True)
class Case:
    model: str = "bert-base"
    batch: int = 8
    length: int = 128
    rounds: int = 9

    def __str__(self) -> str:
        return f"forward {self.model}, batch {self.batch}, {self.length} tokens"


def run(case: Case, against: list[str], device: torch.device, command: str) -> Report:
    import regard

    model = measured(case.model)
    torch.manual_seed(0)
    tokens = torch.randint(4, model.vocabulary, (case.batch, case.length), device=device)
    with tempfile.TemporaryDirectory() as folder:
        home = model.write(Path(folder))
        ours = regard.load(home).to(device)
        frozen = regard.load(home).to(device).freeze()
        contenders: dict[str, Callable[[], Tensor]] = {
            "regard": lambda: ours(input_ids=tokens)["logits"],
            "regard, frozen": lambda: frozen(input_ids=tokens)["logits"],
        }
        if "transformers" in against:
            peer = library("transformers", "transformers")
            peer.utils.logging.disable_progress_bar()
            theirs = peer.AutoModelForMaskedLM.from_pretrained(home).to(device).eval()
            contenders["transformers"] = lambda: theirs(input_ids=tokens).logits

    def once(name: str) -> Callable[[], float]:
        def go() -> float:
            with torch.inference_mode():
                assert contenders[name]().shape == (*tokens.shape, model.vocabulary)
            return float(tokens.numel())

        return go

    timings = turns({name: once(name) for name in contenders}, case.rounds, device)
    limit, work = matrix_rate(device), 2.0 * parameter_count(model.spec)
    rows = [
        row(name, t, ours=name.startswith("regard"), share=t.rate * work / limit)
        for name, t in timings.items()
    ]
    notes = {"matrix rate": f"{limit / 1e9:,.0f} GFLOP/s"}
    return Report(command, str(case), machine(device), "tokens/s", tuple(rows), notes)
