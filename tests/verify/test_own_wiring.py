"""A wiring of one's own answers for itself: it is called, stored, shown, verified, planned and
exported as any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard import load, preset, spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.core.context import AuxiliaryLosses, Context
from regard.core.output import Output, OutputOptions, Outputs
from regard.core.side import Side
from regard.families import folder as folders
from regard.lab.convert import onnx
from regard.lab.plan.step_trace import trace_step
from regard.lab.plan.subject import SENTENCE, Request, _objective, _subject
from regard.lab.plan.workload import modules
from regard.lab.show.page import page
from regard.lab.show.resolve import NamedModel
from regard.lab.verify.invariants import check_invariants
from regard.models import Model
from regard.wirings.core_model import CoreModel, bool_mask
from regard.wirings.encoder import Encoder

CPU = torch.device("cpu")


class SiameseModel(CoreModel):
    """Siamese encoder: classes of (u, v, |u − v|), the vectors of two texts (Sentence-BERT)."""

    def __init__(self, text: Encoder, labels: nn.Module) -> None:
        super().__init__()
        self.text = text
        self.add_heads({"labels": labels})

    def stacks(self) -> dict[str, Side]:
        return {"text.encoder": self.text.stack}

    def forward(
        self,
        first: Tensor,
        second: Tensor,
        first_mask: Tensor | None = None,
        second_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        context = (context or Context()).scope("text")
        u = self.text.vector(first, first_mask, context)  # [B, D]
        v = self.text.vector(second, second_mask, context)
        return torch.cat([u, v, (u - v).abs()], dim=-1), dict(context.losses or {})

    def hidden_states(self, inputs: Mapping[str, Tensor], context: Context) -> Tensor:
        masks = (bool_mask(inputs), bool_mask(inputs, "other_attention_mask"))
        hidden, _ = self(inputs["input_ids"], inputs["other_input_ids"], *masks, context)
        return hidden

    def head_output(self, hidden: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        logits: Tensor = self.get_submodule("labels")(hidden)
        return logits

    def outputs(self, inputs: Mapping[str, Tensor], options: OutputOptions) -> Outputs:
        hidden = self.hidden_states(inputs, options.context)
        return {"logits": Output(self.head_output(hidden, inputs))}


@dataclass(frozen=True)
class Siamese(spec.ModelSpec):
    """One encoder of two texts, and classes of both."""

    text: spec.Encoder
    count: int

    @property
    def inputs(self) -> tuple[spec.Input, ...]:
        return spec.arguments("input_ids other_input_ids", "attention_mask other_attention_mask")

    @property
    def front_ends(self) -> dict[str, spec.FrontEnd | spec.ConvStem | spec.LaggedValues]:
        return {"text.encoder": self.text.input}

    @property
    def stacks(self) -> dict[str, spec.Stack]:
        return {"text.encoder": self.text.stack}

    @property
    def widths(self) -> dict[str, int]:
        return {"text": self.text.d_model}

    def build(self) -> SiameseModel:
        return SiameseModel(build(self.text), nn.Linear(3 * self.text.d_model, self.count))


@pytest.fixture(scope="module")
def siamese() -> Any:
    text: Any = preset("bert:tiny", vocabulary=100)
    return Siamese(text.with_heads(spec.Pool()), 3)


@pytest.fixture(scope="module")
def folder(siamese: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("siamese") / "model"
    Model(build(siamese).eval(), siamese).save(path)
    return path


def test_it_is_called_and_stored(folder: Path) -> None:
    model = load(folder, kinds=[Siamese])
    ids = torch.randint(1, 100, (2, 7))
    logits = model(input_ids=ids, other_input_ids=ids[:, :5])["logits"]
    assert logits.shape == (2, 3)


def test_it_is_shown(siamese: Any) -> None:
    text = "\n".join(map(str, page(NamedModel("siamese", siamese, "regard", "Siamese"))))
    assert f"{parameter_count(siamese):,}" in text
    assert "[B, T, 128]" in text
    assert "classes of (u, v, |u − v|)" in text


def test_it_is_verified(folder: Path) -> None:
    model, opened = folders.open_model(folder, kinds=[Siamese])
    verdicts = {one.name: one.verdict for one in check_invariants(model.double(), opened)}
    assert verdicts.pop("cached = uncached") == "skipped"
    assert set(verdicts.values()) == {"holds"}


def test_it_is_planned(siamese: Any) -> None:
    objective = _objective(siamese)
    request = Request(batch=2, length=16)
    subject = _subject("siamese", siamese, objective, request, SENTENCE)
    traced = trace_step(subject)
    core = modules(siamese, None, real=True).train()
    counter = FlopCounterMode(display=False)
    with counter:
        subject.workload.loss(core, subject.workload.create(CPU)).backward()
    assert traced.parameters == parameter_count(siamese)
    assert traced.flops == pytest.approx(counter.get_total_flops(), rel=0.1)
    longer = replace(subject, sizes=replace(subject.sizes, length=32, source_length=32))
    assert trace_step(longer).flops > 1.9 * traced.flops


def test_it_is_exported(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model, opened = folders.open_model(folder, kinds=[Siamese])
    onnx.write(tmp_path, model, opened)
    assert {one.verdict for one in onnx.compare(tmp_path, model, opened)} == {"holds"}
