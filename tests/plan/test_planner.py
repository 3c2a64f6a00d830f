"""The planner: known totals, predictions equal to counts on real models, monotonicity, errors."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard import spec
from regard.builder.parameter_count import parameter_count
from regard.cli.plan import command
from regard.families import presets
from regard.lab.plan import measurement, planner, report
from regard.lab.plan.accelerators import ACCELERATORS, roofline_seconds
from regard.lab.plan.compute_optimal import REFITTED, compute_optimal
from regard.lab.plan.failures import checkpoint_plan, daly_interval, young_interval
from regard.lab.plan.latency import plan_latency
from regard.lab.plan.measurement import MeasuredStep
from regard.lab.plan.planner import find_device, make_plan
from regard.lab.plan.recommendation import _WIRINGS, recommend
from regard.lab.plan.sharding import parallel_plans
from regard.lab.plan.step_trace import StepTrace, trace_step
from regard.lab.plan.subject import Request, Subject, of_recipe, resolve
from regard.lab.plan.workload import Sizes, StepSettings, modules
from regard.system.errors import ModelError, SettingError
from regard.training.assembly import assemble
from regard.training.objectives.objective import Objective
from regard.training.recipe import loading
from regard.training.recipe.objectives import DATA_KEYS, OBJECTIVES
from regard.training.run_folder import begin
from regard.training.setup import Setup

CPU = torch.device("cpu")
# One of each wiring, with few parameters beside the embeddings.
FAMILIES = (
    "transformer:tiny",
    "t5:tiny",
    "gpt2:tiny",
    "llama:tiny",
    "transformer-xl:tiny",
    "bert:tiny",
    "electra:tiny",
    "vit:tiny",
    "clip:tiny",
    "lstm:tiny",
    "memory:tiny",
    "time-series-transformer:tiny",
    "graphormer:tiny",
)


def small(name: str, **changes: Any) -> Subject:
    # Images and windows of series have one size.
    length = None if name.startswith(("vit", "time")) else 16
    request = {"batch": 2, "length": length, "vocabulary": 300, **changes}
    return resolve(name, Request(**request))


def trace(subject: Subject, **settings: Any) -> StepTrace:
    return trace_step(replace(subject, settings=StepSettings(**settings)))


# --- known totals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "millions"),
    [("transformer:base", 63.08), ("transformer:big", 214.3), ("bert:base", 109.5)],
)
def test_parameters_of_published_models(name: str, millions: float) -> None:
    subject = resolve(name, Request(batch=1, length=8))
    assert parameter_count(subject.description) / 1e6 == pytest.approx(millions, rel=0.01)


def test_attention_weights_of_eight_heads_at_1024_positions_take_33_mb() -> None:
    subject = resolve("transformer:base", Request(batch=1, length=1024))
    plan = make_plan(subject, find_device("H100"))
    assert plan.attention_bytes_per_layer == 8 * 1024 * 1024 * 4  # 33.6 MB


def test_gpt3_takes_the_flops_of_its_paper() -> None:
    # One layer of 96, counted; the rest of them are equal.
    subject = resolve("gpt3:175b", Request(batch=1, length=128))
    description: Any = subject.description
    stack = description.stack
    counts = {}
    for layers in (1, 2):
        fewer = replace(stack, blocks=stack.blocks[:layers])
        changed = replace(subject, description=replace(description, stack=fewer))
        counts[layers] = trace(changed).flops
    flops = counts[1] + 95 * (counts[2] - counts[1])
    parameters = parameter_count(description)
    assert parameters == pytest.approx(175e9, rel=0.005)
    assert flops / 128 * 300e9 == pytest.approx(3.14e23, rel=0.01)
    assert 6 * parameters * 300e9 == pytest.approx(3.14e23, rel=0.005)


def test_compute_optimum_of_chinchilla() -> None:
    usual, published, refitted = compute_optimal(5.76e23)  # Gopher's and Chinchilla's budget
    assert usual.parameters == pytest.approx(70e9, rel=0.02)
    assert usual.tokens == pytest.approx(1.4e12, rel=0.02)
    assert published.parameters == pytest.approx(32e9, rel=0.05)
    assert 6 * refitted.parameters * refitted.tokens == pytest.approx(5.76e23)
    # An optimum: a tenth more or fewer parameters at the same budget are worse.
    for factor in (0.9, 1.1):
        other = REFITTED.loss(refitted.parameters * factor, refitted.tokens / factor)
        assert other > refitted.loss


# --- the trace and real models --------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_the_trace_counts_what_a_real_step_computes(name: str) -> None:
    subject = small(name)
    traced = trace(subject)
    core = modules(subject.description, subject.generator, real=True).train()
    # PyTorch's own counter, which knows no fused kernels of CPUs.
    counter = FlopCounterMode(display=False)
    no_onednn = torch.backends.mkldnn.flags(enabled=False)
    with sdpa_kernel(SDPBackend.MATH), no_onednn, counter:
        subject.workload.loss(core, subject.workload.create(CPU)).backward()
    counted = counter.get_total_flops()
    assert traced.parameters == sum(p.numel() for p in core.parameters())
    # Fused attention computes its scores once more in backward.
    assert counted <= traced.flops <= 1.1 * counted


@pytest.mark.parametrize(
    "name",
    ["transformer:tiny", "gpt2:tiny", "bert:tiny", "electra:tiny", "clip:tiny", "memory:tiny"],
)
def test_predicted_peak_memory_is_what_the_allocator_counts(name: str) -> None:
    subject = small(name, batch=4)
    predicted = trace(subject).memory.total
    step = MeasuredStep(subject, CPU)
    assert predicted == pytest.approx(step.memory, rel=0.02)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_recipe_of_every_objective_is_planned(objective: str) -> None:
    key = DATA_KEYS[OBJECTIVES[objective].data]
    values = {"objective": objective, "preset": "tiny", key: "data", "device": "cpu"}
    rates = {"sounds", "ctc", "speech_contrastive"}
    length = 8000 if objective in rates else 16
    media = {"images", "masked_images", "clips", "masked_clips", "detect", "segment"}
    fixed = objective in {*media, "draw", "forecast"}
    request = Request(batch=2, length=None if fixed else length)
    subject = of_recipe(loading.load(None, values), "test", request)
    predicted = trace(subject).memory.total
    # Small batches: what kernels take for themselves weighs more.
    assert predicted == pytest.approx(MeasuredStep(subject, CPU).memory, rel=0.1)


class RealBatch:
    """A batch of an objective with data, and its own loss, in the place of a planned workload."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        _, self.batch = next(objective.batches(0, 0))
        self.labels = self.batch.tokens

    def create(self, device: torch.device) -> dict[str, Tensor]:
        return {**self.batch.tensors}

    def loss(self, core: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
        return self.objective.loss(tensors)[0]

    def sizes(self, subject: Subject) -> Sizes:
        """The sizes of the batch, as a plan has them."""
        tensors = self.batch.tensors
        if "past" in tensors:
            return replace(subject.sizes, rows=len(tensors["past"]))
        labels = tensors["labels"]
        if "node_features" in tensors:
            return Sizes(1, len(labels), len(labels))
        rows, length = labels.shape
        return Sizes(rows, length, tensors.get("source", labels).shape[1])


def write_tales(folder: Path) -> dict[str, Any]:
    """Many different words: logits are most of the memory of so small a model."""
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = [one + other for one in syllables for other in syllables]
    path = folder / "tales.txt"
    path.write_text("".join(f"the {word} saw a {word}.\n" for word in words))
    return {"text": str(path), "vocabulary": 4000, "context": 128, "batch_tokens": 1024}


def write_series(folder: Path) -> dict[str, Any]:
    path = folder / "series.csv"
    rows = [f"{step % 7},{step % 5},{step % 3}\n" for step in range(1000)]
    path.write_text("one,two,three\n" + "".join(rows))
    return {"series": str(path), "context": 64, "horizon": 8}


def write_graph(folder: Path) -> dict[str, Any]:
    nodes = [f"{i}\t{i % 3}\ttrain\t{i % 5}\t{i % 7}\n" for i in range(200)]
    edges = [f"{i}\t{(i + step) % 200}\n" for i in range(200) for step in (1, 2)]
    (folder / "nodes.tsv").write_text("".join(nodes))
    (folder / "edges.tsv").write_text("".join(edges))
    return {"graph": str(folder)}


@pytest.mark.parametrize(
    ("objective", "model", "write"),
    [
        ("masked", "bert", write_tales),
        ("replaced", "electra", write_tales),
        ("causal", "gpt2", write_tales),
        ("span", "t5", write_tales),
        ("forecast", "patchtst", write_series),
        ("nodes", "graph", write_graph),
    ],
)
def test_the_planned_memory_is_that_of_training_with_data(
    objective: str,
    model: str,
    write: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the planner traces is the loss that training uses."""
    values = write(tmp_path) | {
        "objective": objective,
        "model": model,
        "preset": "tiny",
        "steps": 1,
        "threads": 1,
        "device": "cpu",
    }
    recipe = loading.load(None, values)
    task = assemble(Setup(begin(recipe, tmp_path / "run", "test"), recipe, lambda _: None))
    real = RealBatch(task)
    monkeypatch.setattr(measurement, "modules", lambda *_, **__: task.model)
    subject = of_recipe(recipe, "test", Request())
    subject = replace(subject, description=task.trained_model.spec, sizes=real.sizes(subject))
    if subject.generator is not None:
        generator: Any = task
        subject = replace(subject, generator=generator.generator_model.spec)
    predicted = trace(subject).memory.total
    monkeypatch.setattr(Subject, "workload", real)
    assert predicted == pytest.approx(MeasuredStep(subject, CPU).memory, rel=0.1)


def test_a_trace_draws_no_dropout_and_no_step_is_measured_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Millions of positions are planned without the memory of their masks."""
    before = torch.get_rng_state()
    trace(small("transformer:tiny", batch=64, length=512))
    assert torch.equal(torch.get_rng_state(), before)
    monkeypatch.setattr("regard.system.memory.available", lambda: 1e6)
    arguments = ["gpt2:tiny", "--device", "cpu", "--batch", "2", "--length", "16", "--measure"]
    with pytest.raises(SettingError, match="--batch"):
        CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)


def test_a_tensor_saved_for_backward_is_counted_once_and_only_while_it_lives() -> None:
    one = trace(small("gpt2:tiny", batch=4, length=64))
    recomputed = trace(small("gpt2:tiny", batch=4, length=64), recompute=True)
    assert recomputed.saved < one.saved
    assert recomputed.flops > one.flops
    assert recomputed.memory.weights == one.memory.weights


# --- monotonicity ---------------------------------------------------------------------------------


def test_more_rows_and_longer_inputs_cost_more() -> None:
    sizes = [(1, 16), (2, 16), (2, 32)]
    traces = [trace(small("gpt2:tiny", batch=rows, length=n)) for rows, n in sizes]
    for before, after in itertools.pairwise(traces):
        assert after.flops > before.flops
        assert after.saved > before.saved
        assert after.memory.total >= before.memory.total
    # Rows are independent of each other.
    assert traces[1].forward_flops == 2 * traces[0].forward_flops


def test_accelerators_store_less_than_a_cpu_and_mixed_precision_less_than_float32() -> None:
    subject = small("bert:tiny", batch=8, length=128)  # attention dropout: a CPU stores weights
    on_cpu = trace(subject)
    on_gpu = trace(subject, accelerator=True)
    half = trace(subject, accelerator=True, precision="bf16")
    assert on_gpu.saved < on_cpu.saved
    assert half.saved < on_gpu.saved
    h100 = ACCELERATORS["h100"]
    assert roofline_seconds(on_gpu, h100) < roofline_seconds(on_gpu, ACCELERATORS["t4"])


def test_accumulation_keeps_gradients_during_the_next_forward() -> None:
    subject = small("gpt2:tiny", batch=4, length=64)
    once = trace(subject)
    twice = trace(subject, accumulate=2)
    assert twice.memory.total > once.memory.total
    assert twice.flops == once.flops  # of one micro-batch


def test_sharding_divides_the_states_and_sends_more() -> None:
    memory = trace(small("gpt2:tiny")).memory
    few = parallel_plans(memory, 1.0, ACCELERATORS["h100"], 2)
    many = parallel_plans(memory, 1.0, ACCELERATORS["h100"], 64)
    for plans in (few, many):
        replicas, _, sharded = plans[:3]
        assert sharded.memory < replicas.memory
        assert sharded.traffic == pytest.approx(1.5 * replicas.traffic)
    assert many[2].memory < few[2].memory


def test_checkpoint_interval_is_the_best_by_search() -> None:
    write = 60.0
    failure = 20 * 3600.0
    interval = daly_interval(write, failure)

    def expected(tau: float) -> float:
        """Wall time for a unit of work (Daly 2006, equation 20, without restarts)."""
        return failure * (math.exp((tau + write) / failure) - 1) / tau

    assert interval == pytest.approx(young_interval(write, failure), rel=0.05)
    for factor in (0.8, 1.25):
        assert expected(interval) < expected(factor * interval)
    assert (
        checkpoint_plan(1024, 1e12).lost_hours_per_day > checkpoint_plan(8, 1e12).lost_hours_per_day
    )


# --- what to change -------------------------------------------------------------------------------


def test_remedies_end_with_one_that_fits() -> None:
    subject = resolve("gpt2:tiny", Request(batch=256, length=1024))
    plan = make_plan(subject, find_device("T4"))
    assert plan.fits is False
    assert [remedy.fits for remedy in plan.remedies][-1] is True
    needed = [remedy.memory for remedy in plan.remedies]
    assert needed == sorted(needed, reverse=True)
    assert "fp16" in plan.remedies[0].change  # a T4 has no bf16


# --- subjects, recommendations, errors ------------------------------------------------------------


def test_a_recipe_and_a_config_file_are_subjects(tmp_path: Path) -> None:
    recipe = resolve("wmt14_base", Request())
    assert recipe.objective == "translate"
    assert recipe.tokens is not None
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 300,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for target in (tmp_path, tmp_path / "config.json"):
        subject = resolve(str(target), Request(length=16))
        assert subject.objective == "causal"
        assert subject.description.vocab_size == 300


def test_masked_images_are_planned_with_the_decoder_that_learns_them(tmp_path: Path) -> None:
    """A recipe of SimMIM names an encoder, to which training adds mask tokens and a decoder."""
    recipe = tmp_path / "simmim.toml"
    recipe.write_text(
        '[data]\nimages = "pictures"\n'
        '[model]\nmodel = "swin:tiny"\nlayers = 2\nd_model = 16\nheads = 2\n'
        "image_size = 16\npatch = 2\n"
        '[train]\nobjective = "masked_images"\n'
    )
    subject = resolve(str(recipe), Request(batch=2))
    assert subject.objective == "masked_images"
    assert subject.description.pixels == spec.PixelShuffleHead(4)  # type: ignore[union-attr]
    plan = make_plan(subject, find_device("H100"))
    assert plan.seconds is not None
    assert plan.seconds > 0


def test_a_recommendation_says_when_not_to_use_a_transformer() -> None:
    for task in _WIRINGS:
        advice = recommend(task, 10_000_000)
        assert len(advice.not_if) == 4
        assert any("--inference" in reason and advice.model in reason for reason in advice.not_if)
        assert advice.not_if[0] in "\n".join(advice.lines())


# --- latency --------------------------------------------------------------------------------------


def test_a_token_reads_all_weights_once() -> None:
    """Of LLaMA 7B on an H100: 2 FLOPs and 2 bytes a parameter, without the table of inputs."""
    subject = resolve("llama:7b", Request(length=16, precision="bf16"))
    latency = plan_latency(subject, find_device("H100"))
    read = latency.parameters - 32_000 * 4096
    assert latency.each is not None
    assert latency.each.flops == pytest.approx(2 * read, rel=0.01)
    assert latency.each.bytes == pytest.approx(2 * read, rel=0.03)
    # The bandwidth bounds it from below.
    assert latency.each.seconds > 2 * read / 3.35e12
    # All tokens of a prompt are read, but logits are made of its last one only.
    head = 32_000 * 4096
    assert latency.first.flops == pytest.approx(16 * 2 * (read - head) + 2 * head, rel=0.01)


@pytest.mark.parametrize("name", ["transformer", "bert", "vit", "deit", "whisper", "lstm"])
def test_every_kind_has_a_latency(name: str) -> None:
    latency = plan_latency(resolve(f"{name}:tiny", Request()), find_device("A100"))
    assert latency.first.seconds > 0
    assert (latency.each is not None) == (name in ("transformer", "whisper", "lstm"))
    assert json.loads(json.dumps(latency.data()))["name"] == f"{name}:tiny"


def test_a_latency_is_measured_here() -> None:
    subject = resolve("gpt2:tiny", Request(length=16, vocabulary=500))
    latency = plan_latency(subject, find_device("cpu"), measure=True)
    assert latency.each is not None
    assert latency.each.measured is not None
    # Within an order of magnitude on any machine: Python's share is large in so small a model.
    assert 0.1 < latency.each.seconds / latency.each.measured < 10


def test_experts_have_no_traced_latency() -> None:
    with pytest.raises(ModelError):
        plan_latency(resolve("mixtral:tiny", Request(length=16)), find_device("A100"))


def test_every_recommended_model_exists_and_every_objective_has_one() -> None:
    names = set(presets.names())
    assert set(_WIRINGS) == set(OBJECTIVES)
    for wiring in _WIRINGS.values():
        assert {model for _, model in wiring.sizes} <= names
    few = recommend("sentiment", 1_000)
    assert few.pretrained
    assert few.task == "classify"
    assert not recommend("translation", 4_500_000).pretrained
    assert recommend("translate", 4_500_000).model == "transformer:base"


@pytest.mark.parametrize("tokens", [500_000_000, 10_000_000_000])
def test_a_recommended_language_model_has_about_a_twentieth_of_the_tokens(tokens: int) -> None:
    model = recommend("causal", tokens).model
    parameters = parameter_count(presets.preset(model))
    assert 1 / 8 < parameters / (tokens / 20) < 8
    assert recommend("causal", 3_000_000).model == "gpt2:tiny"


def test_too_few_examples_are_sent_to_a_simpler_tool() -> None:
    assert "TF-IDF" in recommend("sentiment", 200).why[0]
    assert "TF-IDF" not in recommend("sentiment", 5_000).why[0]
    assert "dlinear" in recommend("forecast", 500).why[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transfomer:base"], "did you mean"),
        (["gpt2:tiny", "--device", "H101"], "did you mean"),
        (["gpt2:tiny", "--length", "4000", "--device", "cuda:0"], "no CUDA device"),
        (["bert:tiny", "--precision", "bf16", "--device", "T4"], "does not support bf16"),
        (["gpt2:tiny", "--devices", "0", "--device", "H100"], "devices"),
        (
            ["gpt2:tiny", "--devices", "8", "--device", "cpu", "--batch", "1", "--length", "8"],
            "known interconnect bandwidth",
        ),
        (["--flops", "-1"], "--flops"),
        (["--task", "dance", "--examples", "5"], "unknown task"),
        (["--task", "classify"], "--examples"),
        ([], "no model"),
        (["gpt2:tiny", "--batch", "0", "--device", "H100"], "--batch"),
    ],
)
def test_errors_end_with_the_repair(arguments: list[str], message: str) -> None:
    if torch.cuda.is_available() and "cuda:0" in arguments:
        pytest.skip("there is a CUDA device")
    with pytest.raises((ModelError, SettingError)) as raised:
        CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    assert message in str(raised.value)


def test_the_page_and_the_json_agree() -> None:
    arguments = [
        "gpt2:tiny",
        "--device",
        "H100",
        "--batch",
        "2",
        "--length",
        "16",
        "--tokens",
        "1e9",
    ]
    page = CliRunner().invoke(command, arguments, catch_exceptions=False).output
    content = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)
    assert f"{content['parameters']:,}" in page
    assert sum(content["parts"].values()) == content["parameters"]
    assert content["flops"]["six_n_d"] == 6 * content["parameters"] * 1e9
    assert "fits" in page


# --- several machines -----------------------------------------------------------------------------


def test_traffic_and_latency_of_rings_by_hand() -> None:
    """ZeRO's volumes: 2 Ψ for replicas, 3 Ψ sharded; gathered in half the bytes, 2 Ψ again."""
    memory = trace(small("gpt2:tiny")).memory
    h100 = ACCELERATORS["h100"]
    plans = parallel_plans(memory, 1.0, h100, 512, layers=10, gathered=0.5)
    replicas, _, sharded, hybrid = plans
    assert sharded.traffic == pytest.approx(replicas.traffic)
    assert replicas.traffic == pytest.approx(2 * 511 / 512 * memory.weights)
    # Three collectives a layer, each with a hop for every device; two for replicas.
    rate = min(h100.link, 8 * 50e9)
    assert sharded.seconds - sharded.traffic / rate == pytest.approx(3 * 10 * 512 * 3e-6)
    assert replicas.overlapped_seconds == 1.0
    # Far shorter rings for the price of as much memory as eight devices have.
    assert hybrid.seconds < sharded.seconds
    eight = parallel_plans(memory, 1.0, h100, 8)[2]
    assert hybrid.memory == pytest.approx(eight.memory)


def test_another_number_of_devices_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = resolve("gpt2:tiny", Request(batch=4, length=64, precision="bf16"))
    plan = make_plan(subject, find_device("H100"), devices=64)
    once = make_plan(subject, find_device("H100"))
    monkeypatch.setattr(planner, "trace_step", None)
    again = planner.with_devices(once, 64)
    assert again.parallel == plan.parallel
    assert again.checkpoints == plan.checkpoints
    # Every machine writes its part: eight of them are eight times as fast.
    assert once.checkpoints.write_seconds == pytest.approx(8 * again.checkpoints.write_seconds)
    lines = "\n".join(report.lines(again))
    assert "MFU" in lines
    assert "HSDP" in lines
    assert 0 < (again.utilization(again.parallel[0].step_seconds) or 0) < 1


@pytest.mark.slow
def test_the_page_of_large_runs_is_the_planners() -> None:
    script = Path(__file__).parents[2] / "scripts" / "plan_tables"
    environment = {**os.environ, "PYTHONPATH": str(Path(planner.__file__).parents[2])}
    subprocess.run([sys.executable, str(script), "--check"], check=True, env=environment)
