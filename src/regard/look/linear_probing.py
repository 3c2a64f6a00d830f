"""Linear probes: what a linear classifier can read from the hidden states of each layer.

Alain and Bengio 2016; with a control task, as Hewitt and Liang 2019 ask for: a probe that finds
random classes of words has learnt the words by heart, and says nothing about the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.probe import Probe
from regard.look import drawing
from regard.look.forward import evaluation_mode, hidden_states
from regard.look.inspectable import Input, Inspectable
from regard.look.model_inputs import ModelInputs, prepare_inputs
from regard.look.probe_names import residual_probes
from regard.look.result import AnalysisResult, Array, Names
from regard.look.views import other_views, viewed_stack
from regard.system.errors import DataError, SettingError

HELD_OUT = 4  # one of so many inputs is kept for the score
PLACES = 64  # positions that are told apart, at most
POSITION = "position"
Words = Sequence[str]
Labels = Sequence[str] | Sequence[Words]


@dataclass(frozen=True)
class LinearProbes(AnalysisResult):
    """How many labels a linear classifier finds in the hidden states of each layer.

    All shares are of vectors of inputs that no classifier was trained on. `control` is the share
    that another one finds where each word (or whole input) has a random class, `majority` that of
    the most frequent class.
    """

    stack: str
    layers: Names
    accuracy: Array  # [layers]
    control: Array  # [layers]
    majority: float
    classes: Names
    trained_on: int  # vectors
    tested_on: int

    note = (
        "A linear classifier on frozen hidden states, scored on held-out inputs. What it finds "
        "beyond the control task (random classes of the same words) and the majority is there to "
        "be read; whether the model uses it, a probe does not say."
    )
    numbers = "accuracy"

    @property
    def title(self) -> str:
        return f"linear probes of the {self.stack}: {len(self.classes)} classes by layer"

    def scene(self) -> drawing.Scene:
        layers = range(len(self.layers))
        majority = [100 * self.majority for _ in layers]
        series = [
            drawing.Series("probe", layers, (100 * self.accuracy).tolist()),
            drawing.Series("control task", layers, (100 * self.control).tolist()),
            drawing.Series("majority", layers, majority, style="dashed"),
        ]
        x = drawing.Axis("after so many layers (0: the embeddings)", ticks=layers)
        y = drawing.Axis("% right, held out")
        return drawing.titled(self.title, drawing.Chart(self.title, x, y, series).scene())

    def table(self) -> list[list[str]]:
        rows = [["reads", "% right", "control", "selectivity"]]
        for layer, right, control in zip(self.layers, self.accuracy, self.control, strict=True):
            shares = (right, control, right - control)
            rows.append([layer, *(f"{100 * share:.1f}" for share in shares)])
        rows.append(["majority class", f"{100 * self.majority:.1f}", "", ""])
        rows.append([f"{self.trained_on:,} vectors, {self.tested_on:,} held out", "", "", ""])
        return rows


class _Vectors(NamedTuple):
    """The labelled vectors of one input."""

    layers: list[Tensor]  # [N, D] of each
    labels: list[str]  # N
    names: list[str]  # N: the words, whose classes the control task draws


def linear_probes(
    model: Inspectable,
    inputs: Sequence[Input] | Sequence[Words],
    labels: Labels | str,
    *,
    stack: str | None = None,
    seed: int = 0,
) -> LinearProbes:
    """Trains a linear classifier on the hidden states of each layer of a stack (the first).

    `labels` has a class for each input, whose mean vector it describes; or a list of them for each
    list of words ("" for none), described by the mean vectors of their tokens; or is "position",
    for the place of each token. A quarter of the inputs, drawn by the seed, is held out.
    """
    name = viewed_stack(model, "probe", stack)
    # Labels are of what is read; a decoder behind an encoder reads what it writes itself.
    if model.model.reads_target and name == "decoder":
        raise SettingError("the decoder reads no labelled inputs", "set stack='encoder'")
    if labels == POSITION and not model.accepts_text:
        raise SettingError("positions are told apart in texts", other_views(model))
    if isinstance(inputs, str) or len(inputs) < 2:
        raise DataError("probes need several inputs", "pass a list of at least two of them")
    if not isinstance(labels, str) and len(labels) != len(inputs):
        raise DataError(
            f"there are {len(inputs)} inputs and {len(labels)} labels", "give each input its own"
        )
    with evaluation_mode(model.model):
        examples = list(_examples(model, name, inputs, labels))
    order = np.random.default_rng(seed).permutation(len(examples))
    split = max(1, len(examples) // HELD_OUT)
    tested, trained = ([examples[i] for i in part] for part in (order[:split], order[split:]))
    classes = sorted({label for one in trained for label in one.labels}, key=_by_number)
    if len(classes) < 2:
        raise DataError("the inputs have one class in all", "give labels of two classes or more")
    true = _true_labels(classes)
    control_task = _control_task(true(trained).bincount(), seed)
    layers = range(len(examples[0].layers))
    scores = [_shares(trained, tested, layer, true, control_task) for layer in layers]
    accuracy, control = zip(*scores, strict=True)
    most = true(trained).mode().values
    return LinearProbes(
        name,
        ("embedded", *(f"layer {i}" for i in layers[:-1])),
        np.array(accuracy),
        np.array(control),
        float((true(tested) == most).double().mean()),
        tuple(classes),
        sum(len(one.labels) for one in trained),
        sum(len(one.labels) for one in tested),
    )


def fitted(features: Tensor, classes: Tensor, count: int) -> Callable[[Tensor], Tensor]:
    """Multinomial logistic regression of vectors [N, D] on classes [N], as a function of others.

    Features are standardized; solved by L-BFGS in float64, so that nothing depends on a rate.
    """
    features = features.double()
    mean = features.mean(0)
    deviation = features.std(0).clamp_min(1e-6)
    probe = nn.Linear(features.shape[1], count).double().to(features.device)
    # The problem is convex: where it begins does not matter.
    nn.init.zeros_(probe.weight)
    nn.init.zeros_(probe.bias)
    standard = (features - mean) / deviation
    optimizer = torch.optim.LBFGS(probe.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        # A little weight decay, without which a probe of few texts grows without end.
        decay = 1e-4 * probe.weight.square().sum()
        entropy = functional.cross_entropy(probe(standard), classes) + decay
        entropy.backward()  # type: ignore[no-untyped-call]
        return entropy

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return lambda others: probe((others.double() - mean) / deviation).detach()


# ------------------------------------------------------------------ vectors


def _examples(
    model: Inspectable, stack: str, inputs: Sequence[Input] | Sequence[Words], labels: Labels | str
) -> Iterator[_Vectors]:
    core = model.model
    names = residual_probes(core, stack)
    for number, one in enumerate(inputs):
        words = None if isinstance(one, Input) else list(one)
        read = one if isinstance(one, Input) else " ".join(one)
        prepared = prepare_inputs(model, read, "" if core.reads_target else None)
        probe = Probe(names)
        hidden_states(core, prepared.arguments, probe)
        if not probe.tensors:  # of two towers, the other one
            raise DataError(f"the {stack} does not read input {number}", "choose another stack")
        layers = [probe.tensors[name][0].float() for name in names]  # [T, D] of each
        label = labels if isinstance(labels, str) else labels[number]
        if labels == POSITION:
            yield _of_positions(layers, prepared, stack)
        elif isinstance(label, str):
            means = [layer.mean(dim=0, keepdim=True) for layer in layers]  # [1, D]
            yield _Vectors(means, [label], [str(number)])
        elif words is None or len(words) != len(label):
            raise DataError(
                f"input {number} has {len(label)} labels for {len(words or ())} words",
                "give a list of words and one label for each",
            )
        else:
            yield _of_words(model, layers, words, label)


def _of_positions(layers: list[Tensor], prepared: ModelInputs, stack: str) -> _Vectors:
    tokens = prepared.tokens_of(stack)[:PLACES]
    return _Vectors(
        [layer[:PLACES] for layer in layers], [*map(str, range(len(tokens)))], list(tokens)
    )


def _of_words(
    model: Inspectable, layers: list[Tensor], words: list[str], labels: Words
) -> _Vectors:
    """The mean vectors of the tokens of each word that has a label."""
    ends = accumulate(len(word) + 1 for word in words)
    spans = [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]
    offsets = torch.tensor(model.input_tokenizer.input_offsets(" ".join(words)))  # [T, 2]
    rows = []
    chosen = []
    for number, (start, end) in enumerate(spans):
        # Special tokens are at (0, 0), which no word overlaps.
        within = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        if labels[number] and bool(within.any()):
            rows.append(within.to(layers[0]) / within.sum())  # [T]
            chosen.append(number)
    weights = torch.stack(rows) if rows else layers[0].new_zeros(0, len(offsets))  # [N, T]
    means = [weights @ layer for layer in layers]  # [N, D]
    return _Vectors(means, [labels[i] for i in chosen], [words[i] for i in chosen])


# ------------------------------------------------------------------ classes and scores

Task = Callable[[Sequence[_Vectors]], Tensor]  # the classes of the vectors of some inputs [N]


def _by_number(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdecimal() else (0, label)


def _true_labels(classes: list[str]) -> Task:
    index = {label: number for number, label in enumerate(classes)}
    # A class that training has not is none of them, and wrong.
    return lambda part: torch.tensor([index.get(label, -1) for one in part for label in one.labels])


def _control_task(counts: Tensor, seed: int) -> Task:
    """A class for each word, drawn as often as the labels of training [C] have it."""
    shares = (counts / counts.sum()).double().numpy()
    rng = np.random.default_rng(seed)
    drawn: dict[str, int] = {}

    def task(part: Sequence[_Vectors]) -> Tensor:
        names = [name for one in part for name in one.names]
        for name in names:
            if name not in drawn:
                drawn[name] = int(rng.choice(len(shares), p=shares / shares.sum()))
        return torch.tensor([drawn[name] for name in names])

    return task


def _shares(
    trained: Sequence[_Vectors], tested: Sequence[_Vectors], layer: int, *tasks: Task
) -> list[float]:
    """The share of held-out vectors whose class a probe finds, for each of the tasks."""
    features = torch.cat([one.layers[layer] for one in trained])  # [N, D]
    others = torch.cat([one.layers[layer] for one in tested])
    shares = []
    for task in tasks:
        classes = task(trained).to(features.device)
        scores = fitted(features, classes, int(classes.max()) + 1)(others)
        right = scores.argmax(dim=-1).cpu() == task(tested)
        shares.append(float(right.double().mean()))
    return shares
