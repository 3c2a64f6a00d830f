"""Circuits: the smallest set of heads that an ability depends on, found by ablating sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from regard.core.probe import Probe
from regard.look import drawing
from regard.look.drawing import terminal
from regard.look.forward import apply_head, evaluation_mode, hidden_states
from regard.look.head_importance import right
from regard.look.inspectable import Inspectable
from regard.look.model_inputs import LabelledBatch
from regard.look.probe_names import Head, heads, switched_off
from regard.look.recording import array
from regard.look.result import AnalysisResult, Array
from regard.system import disk
from regard.system.arguments import whole_number
from regard.system.errors import DataError

SCREEN = 64  # texts that every set is tried on; only a set that does well there is tried on all
SLACK = 0.15  # by which an accuracy on so few texts may differ from that on all
LISTED = 12  # heads whose single ablations are shown
NEAREST = "no set of heads meets both bounds; the closest one:"


@dataclass(frozen=True, eq=False)
class Choices:
    """Texts with several tokens to choose from at one position; the first option is right."""

    data: LabelledBatch
    positions: tuple[int, ...]  # of the choice in each text's decoder
    options: tuple[tuple[int, ...], ...]  # token ids

    def first(self, count: int) -> Choices:
        """The first few of them."""
        return Choices(self.data.first(count), self.positions[:count], self.options[:count])


def chosen_right(model: Inspectable, choices: Choices, off: Sequence[Head] = ()) -> Array:
    """[B] whether the right option has the highest logit, with some heads ablated."""
    core = model.model
    data = choices.data
    with evaluation_mode(core):
        hidden = hidden_states(core, data.named, Probe(edits=switched_off(core, off)))
        rows = torch.arange(len(hidden), device=hidden.device)
        # The LM head is applied at one position of each text only.
        selected = hidden[rows, list(choices.positions)][:, None]  # [B, 1, D]
        logits = apply_head(core, selected, data.named)[:, 0]  # [B, V]
        options = torch.tensor(choices.options, device=hidden.device)
        scores = logits.gather(1, options)  # [B, options]
    return array((scores[:, :1] > scores[:, 1:]).all(dim=1))


@dataclass(frozen=True)
class Circuit(AnalysisResult):
    """The smallest set of heads whose ablation removes an ability and leaves the rest.

    The ability is a choice between words, the rest are other texts to be written exactly.
    """

    heads: tuple[Head, ...]
    accuracy: float  # of the choices, with all heads
    ablated_accuracy: float  # … with the circuit off
    rest_accuracy: float  # of the other texts
    ablated_rest_accuracy: float
    meets_bounds: bool  # or it is only the nearest set
    tried: int  # sets of heads
    every: bool  # whether all sets up to the size of this one were tried
    singles: dict[str, float]  # the accuracy of the choices with each head alone off
    reader: Head | None = None  # the head that attends most to the referent of a pronoun
    # The reader's attention to the referent, with all heads and with the circuit off.
    looks: tuple[float, float] | None = None

    note = "Heads are zeroed without retraining: this shows what the trained model relies on."

    @property
    def title(self) -> str:
        names = ", ".join(f"{name} head {head}" for name, head in self.heads)
        choices = f"{self.accuracy:.0%} → {self.ablated_accuracy:.0%}"
        rest = f"{self.rest_accuracy:.0%} → {self.ablated_rest_accuracy:.0%}"
        return f"{names}: accuracy {choices}, on other texts {rest}"

    def numpy(self) -> Array:
        choices = [self.accuracy, self.ablated_accuracy]
        return np.array([*choices, self.rest_accuracy, self.ablated_rest_accuracy])

    def scene(self) -> drawing.Scene:
        names, values = zip(*self._worst_singles(), strict=True)
        labels = [f"{value:.0%}" for value in values]
        return drawing.bars(values, names, title=self.title, labels=labels)

    def lines(self, width: int = 100) -> list[str]:
        lines = [] if self.meets_bounds else [NEAREST, ""]
        rows = [
            ["", "all heads", "circuit off"],
            ["the choice", f"{self.accuracy:.1%}", f"{self.ablated_accuracy:.1%}"],
            ["other texts", f"{self.rest_accuracy:.1%}", f"{self.ablated_rest_accuracy:.1%}"],
        ]
        if self.reader is not None and self.looks is not None:
            name, head = self.reader
            shares = [f"{share:.1%}" for share in self.looks]
            rows.append([f"{name} head {head} attends to the referent", *shares])
        lines += terminal.table(rows, width=width)
        which = "all of them" if self.every else "only the heads with the largest effect"
        lines += [
            "",
            f"{self.tried:,} sets of at most {len(self.heads)} heads were tried ({which}). "
            "Accuracy with a single head ablated:",
        ]
        singles = [
            [name, f"{value:.1%}", terminal.bar(value, 1.0)]
            for name, value in self._worst_singles()
        ]
        return [*lines, *terminal.table(singles, width=width)]

    def _worst_singles(self) -> list[tuple[str, float]]:
        return sorted(self.singles.items(), key=lambda item: item[1])[:LISTED]


def circuit(
    model: Inspectable,
    ability: Choices,
    rest: LabelledBatch,
    *,
    near: float = 0.55,
    keep: float = 0.9,
    most: int = 3,
    tries: int = 3000,
) -> Circuit:
    """The smallest set of at most `most` heads that the choices depend on and the rest does not.

    With these heads ablated, at most a share `near` of the choices is right, and at least `keep` of
    the other texts is still written exactly. Of several such sets, it is the one that leaves least
    of the choices. All sets of a size are tried if there are at most `tries`; of more, those among
    the heads that matter most alone.
    """
    whole_number("most", most, least=1)
    whole_number("tries", tries, least=1)
    few_choices = ability.first(SCREEN)
    few_texts = rest.first(SCREEN)

    def accuracy(off: Sequence[Head], choices: Choices = ability) -> float:
        return float(chosen_right(model, choices, off).mean())

    def rest_accuracy(off: Sequence[Head], texts: LabelledBatch = rest) -> float:
        return float(right(model, texts, off).mean())

    baseline = accuracy([])
    rest_baseline = rest_accuracy([])
    if baseline <= near or rest_baseline < keep:
        raise DataError(
            f"the accuracy without ablation is too low: {baseline:.0%} of the choices and "
            f"{rest_baseline:.0%} of the other texts",
            "use a model that has learnt both",
        )
    single_accuracy = {head: accuracy([head]) for head in heads(model.model)}
    singles = {f"{name} head {head}": value for (name, head), value in single_accuracy.items()}
    # The most harmful heads first.
    ranked = sorted(single_accuracy, key=lambda head: single_accuracy[head])
    best: tuple[float, tuple[Head, ...]] = (single_accuracy[ranked[0]], (ranked[0],))
    tried = 0
    every = True
    # Small sets first: the first that meets both bounds is the smallest.
    for size in range(1, most + 1):
        candidates = _affordable(len(ranked), size, tries)
        sets = list(combinations(ranked[:candidates], size))
        tried += len(sets)
        every = every and candidates == len(ranked)
        # A set is measured on all texts only if it looks promising on a few.
        harmful = [off for off in sets if accuracy(off, few_choices) <= near + SLACK]
        measured = sorted((accuracy(off), off) for off in harmful)
        for ablated, off in measured:
            if ablated > near:  # and so are all that follow
                break
            if rest_accuracy(off, few_texts) < keep - SLACK:
                continue
            ablated_rest = rest_accuracy(off)
            if ablated_rest >= keep:
                return Circuit(
                    off, baseline, ablated, rest_baseline, ablated_rest, True, tried, every, singles
                )
        best = min([best, *measured[:1]])  # in case that no set meets the bounds
    ablated, off = best
    return Circuit(
        off, baseline, ablated, rest_baseline, rest_accuracy(off), False, tried, every, singles
    )


def _affordable(heads: int, size: int, tries: int) -> int:
    """Of how many heads all sets of a size can be tried."""
    count = size
    while count < heads and comb(count + 1, size) <= tries:
        count += 1
    return count


def stored_circuit(folder: str | Path) -> Circuit | None:
    """The circuit in a model folder's circuit.json, if there is one.

    The file is what `examples/pronoun_circuit.py` prints.
    """
    path = Path(folder) / "circuit.json"
    if not path.is_file():
        return None
    try:
        circuit: Circuit = TypeAdapter(Circuit).validate_python(disk.read_json(path, DataError))
    except ValidationError:
        raise DataError(
            f"{path} does not contain a circuit",
            "write it again: python examples/pronoun_circuit.py MODEL > circuit.json",
        ) from None
    return circuit
