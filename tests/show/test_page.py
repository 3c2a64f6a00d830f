"""A page shows every part once: its counts are those of the modules, and add up to the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build, outline
from regard.builder.parameter_count import parameter_count
from regard.core.stack import Stack
from regard.families.encoder_decoders.transformer import transformer
from regard.families.folder import FAMILIES, describe
from regard.lab.show.modules import ModuleSummary, summarize
from regard.lab.show.page import data, page
from regard.lab.show.resolve import NamedModel, resolve
from regard.system.errors import ModelError

transformers = pytest.importorskip("transformers")

OWN: dict[str, spec.Model] = {
    f"share {share}": transformer(
        37, 37 if share == "all" else 41, d_model=24, d_ff=40, heads=3, layers=2, share=share
    )  # type: ignore[arg-type]
    for share in ("all", "target", "none")
}
OWN["parallel, one norm"] = spec.Decoder(
    24,
    spec.Tokens(19, None, segments=3, norm=spec.LayerNorm(bias=False), width=10),
    spec.Stack.of(
        3, spec.Block(spec.Attention(4, 6, 5, groups=1, bias="qv"), spec.GatedFeedForward(20), residual=spec.Parallel(1)),
        spec.CausalMask(4), spec.Alibi(), final=spec.RMSNorm(), scheme=spec.Shared(),
    ),
    (spec.LMHead(bias=True, transform=spec.HeadTransform(10)),),
)  # fmt: skip


def published(kind: str) -> spec.Model:
    """The size that transformers assumes for a family, which is that of a published model."""
    config = transformers.AutoConfig.for_model(kind).to_diff_dict()
    if kind == "deberta-v2":  # its own default is a model without relative positions
        config |= {
            "relative_attention": True,
            "pos_att_type": "c2p|p2c",
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
        }
        config |= {"share_att_key": True, "position_biased_input": False, "conv_kernel_size": 3}
    if kind == "detr":  # its own default is a backbone of timm's
        resnet = transformers.ResNetConfig(out_features=["stage4"]).to_dict()
        config |= {"use_timm_backbone": False, "backbone_config": resnet}
    if kind == "esm":  # its learned positions count from behind this token
        config |= {"pad_token_id": 1}
    if kind == "vision-encoder-decoder":  # its own default are two models without sizes
        config |= {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2"}}
    if kind == "time_series_transformer":
        config |= {"prediction_length": 24}  # without which there is no such model
    return FAMILIES[kind].to_spec(config)


def every() -> dict[str, Any]:
    return {**{kind: lambda kind=kind: published(kind) for kind in FAMILIES if kind != "regard"},
            **{name: lambda name=name: OWN[name] for name in OWN}}  # fmt: skip


def about(name: str) -> NamedModel:
    model = every()[name]()
    config = describe(model)
    return NamedModel(name, model, config["model_type"], config["architectures"][0])


def find(modules: Sequence[ModuleSummary], *path: str) -> list[ModuleSummary]:
    """All modules with this path of names."""
    name, *rest = path
    named = [module for module in modules if module.name == name]
    if not rest:
        return named
    return [inner for module in named for inner in find(module.children, *rest)]


def numbers(modules: Iterable[Any]) -> int:
    """The trainable numbers of modules, each counted once."""
    parameters = {part for module in modules for part in module.parameters() if part.requires_grad}
    return sum(part.numel() for part in parameters)


@pytest.mark.parametrize("name", every())
def test_parts_add_up_and_are_those_of_the_modules(name: str) -> None:
    model = about(name).spec
    summaries = summarize(model)
    assert sum(module.parameters for module in summaries) == parameter_count(model)
    core = outline(model)
    # All modules in their order; what is shared counts for the first of its outermost owners.
    parts = dict(core.named_children())
    assert [summary.name for summary in summaries if summary.name in parts] == list(parts)
    earlier: list[Any] = []
    for part_name, part in parts.items():
        counted = numbers([*earlier, part]) - numbers(earlier)
        assert find(summaries, part_name)[0].parameters == counted
        earlier.append(part)


def test_the_blocks_of_a_stack_are_all_there() -> None:
    for name in ("share all", "parallel, one norm"):
        summaries = summarize(OWN[name])
        for stack_name, module in outline(OWN[name]).named_children():
            if isinstance(module, Stack):
                blocks = find(summaries, stack_name, "blocks")
                assert sum(block.parameters for block in blocks) == numbers(module.blocks)
                assert sum(block.times for block in blocks) == len(module.blocks)


def test_shapes_are_those_of_a_real_forward() -> None:
    model = OWN["share all"]
    core = build(model).eval()
    shapes: dict[str, torch.Tensor] = {}
    for path, module in core.named_modules():
        module.register_forward_hook(
            lambda module, inputs, output, path=path: shapes.setdefault(path, output)
        )
    core(torch.zeros(5, 14, dtype=torch.long), torch.zeros(5, 11, dtype=torch.long))
    letters = {5: "B", 14: "T", 11: "U"}
    summaries = summarize(model, with_shapes=True)
    for path in ("encoder", "decoder", "decoder.blocks.0.cross.output", "encoder.blocks.1"):
        sizes = ", ".join(str(letters.get(size, size)) for size in shapes[path].shape)
        shown = find(summaries, *(part for part in path.split(".") if not part.isdigit()))[0]
        assert shown.shape == f"[{sizes}]"


@pytest.mark.parametrize("kind", ["Linformer, one projection for all layers", "Universal"])
def test_what_belongs_to_no_single_layer_is_counted_too(kind: str) -> None:
    attention = spec.Attention(2, 4, 4)
    options: dict[str, Any] = {"scheme": spec.Universal()}
    if kind.startswith("Linformer"):
        attention = spec.Attention(2, 4, 4, mixer=spec.Linformer(8, 4, "layers"))
        options = {}
    stack = spec.Stack.of(2, spec.Block(attention, spec.FeedForward(6)), **options)
    model = spec.Encoder(8, spec.Tokens(20, None), stack)
    assert sum(module.parameters for module in summarize(model)) == parameter_count(model)


@pytest.mark.parametrize("name", every())
def test_the_page_fits_its_columns_and_the_data_is_json(name: str) -> None:
    model = about(name)
    lines = [line.plain for line in page(model)]
    assert max(map(len, lines)) <= 100
    assert f"{parameter_count(model.spec):,}" in "\n".join(lines)
    values = json.loads(json.dumps(data(model)))
    assert spec.from_dict(values["spec"]) == model.spec
    assert sum(module["parameters"] for module in values["stations"]) == values["parameters"]


def test_a_folder_needs_no_weights_and_no_time(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
        num_key_value_heads=8,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "regard", "show", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "70,553,706,496" in done.stdout
    assert "blocks × 80" in done.stdout
    assert "heads=64, key_heads=8" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_norm_stands_where_it_stands() -> None:
    def norms(model: spec.Model, *path: str) -> list[tuple[str, int]]:
        return [(each.kind, each.times) for each in find(summarize(model), *path)]

    assert norms(OWN["share all"], "encoder", "blocks", "residual", "each") == [("PostNorm", 2)]
    pre = transformer(37, 37, d_model=24, heads=3, layers=1, residual=spec.PreNorm())
    assert norms(pre, "decoder", "blocks", "residual", "each") == [("PreNorm", 3)]
    assert find(summarize(OWN["parallel, one norm"]), "stack", "blocks")[0].kind == "ParallelBlock"


def test_the_page_says_what_it_attends_to_and_computes() -> None:
    text = "\n".join(line.plain for line in page(about("llama")))
    for words in (
        "CausalMask",
        "Rope(dimensions",
        "base=",
        "heads=",
        "softmax(scale · q kᵀ",
        "x W",
    ):
        assert words in text


def test_presets_and_what_is_neither() -> None:
    assert resolve("transformer:base").architecture == "MarianMTModel"
    assert parameter_count(resolve("transformer:base").spec) == 63_082_496
    with pytest.raises(ModelError, match="did you mean 'transformer:base'"):
        resolve("transformer:bas")
    with pytest.raises(ModelError, match="neither a model folder nor a preset"):
        resolve("nowhere")


@pytest.mark.parametrize(
    "name", ["gpt3:175b", "palm:540b", "bert:base", "electra:small", "t5:11b", "bart:large"]
)
def test_presets_are_shown_at_any_size(name: str) -> None:
    model = resolve(name)
    assert data(model)["parameters"] == parameter_count(model.spec)
