"""A page shows every part once: its counts are those of the modules, and add up to the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regard import spec
from regard.builder import outline
from regard.errors import ModelError
from regard.families.folder import FAMILIES, describe
from regard.families.transformer import transformer
from regard.parameter_count import parameter_count
from regard.show.modules import ModuleSummary, summarize
from regard.show.page import data, page
from regard.show.resolve import NamedModel, resolve

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
    spec.Stack(
        3, spec.Block(spec.Attention(4, 6, 5, groups=1, bias="qv"), spec.GatedFeedForward(20), residual=spec.Parallel(1)),
        spec.CausalMask(4), spec.Alibi(), final=spec.RMSNorm(), shared=True,
    ),
    spec.LMHead(bias=True, transform=spec.HeadTransform(10)),
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


def numbers(module: Any) -> int:
    return sum(part.numel() for part in module.parameters() if part.requires_grad)


@pytest.mark.parametrize("name", every())
def test_parts_add_up_and_are_those_of_the_modules(name: str) -> None:
    model = about(name).spec
    summaries = summarize(model)
    assert sum(module.parameters for module in summaries) == parameter_count(model)
    built: Any = outline(model)
    if isinstance(model, spec.DualEncoder):
        towers: list[Any] = [
            (model.text, find(summaries, "text tower")[0].children, built.text),
            (model.image, find(summaries, "image tower")[0].children, built.image),
        ]
    else:
        towers = [(model, summaries, built)]
    for part, shown, module in towers:
        if isinstance(part, spec.EncoderDecoder | spec.SeriesEncoderDecoder):
            same_stack(find(shown, "encoder side", "encoder")[0], module.encoder)
            same_stack(find(shown, "decoder side", "decoder")[0], module.decoder)
        else:
            decodes = isinstance(part, spec.Decoder)
            same_stack(find(shown, "decoder" if decodes else "encoder")[0], module.stack)
            fronts = [s for s in shown if s.name in ("embedding", "patches", "convolutions")]
            front = module.tokens if decodes else module.input
            assert sum(s.parameters for s in fronts) == numbers(front)


def same_stack(shown: ModuleSummary, stack: Any) -> None:
    """The counts of a stack's summary are those of its modules."""
    assert shown.parameters == numbers(stack)
    blocks = find(shown.children, "block")
    first = stack.blocks[0]
    block = blocks[0]
    assert block.parameters_per_copy == numbers(first)
    assert sum(each.times for each in blocks) == stack.layers
    assert all(part.own_parameters >= 0 for each in blocks for part in each.children)
    for line, part in (("self-attention", first.attention), ("cross-attention", first.cross)):
        for attention in find(block.children, line):
            assert attention.parameters == numbers(part)
            assert find(attention.children, "output")[0].parameters == numbers(part.output)
    assert find(block.children, "feed-forward")[0].parameters == numbers(first.feedforward)


@pytest.mark.parametrize("kind", ["Linformer, one projection for all layers", "Universal"])
def test_what_belongs_to_no_single_layer_is_counted_too(kind: str) -> None:
    attention = spec.Attention(2, 4, 4)
    options: dict[str, Any] = {"shared": True, "universal": spec.Universal()}
    if kind.startswith("Linformer"):
        attention = spec.Attention(2, 4, 4, mixer=spec.Linformer(8, 4, "layers"))
        options = {}
    stack = spec.Stack(2, spec.Block(attention, spec.FeedForward(6)), **options)
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
    assert "block × 80" in done.stdout
    assert "64 heads on 8 key heads" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_norm_stands_where_it_stands() -> None:
    post = [
        s.name
        for s in find(summarize(OWN["share all"]), "encoder side", "encoder", "block")[0].children
    ]
    assert post == ["self-attention", "add & norm", "feed-forward", "add & norm"]
    pre = transformer(37, 37, d_model=24, heads=3, layers=1, residual=spec.PreNorm())
    names = [s.name for s in find(summarize(pre), "decoder side", "decoder", "block")[0].children]
    assert names == [
        "norm",
        "self-attention",
        "add",
        "norm",
        "cross-attention",
        "add",
        "norm",
        "feed-forward",
        "add",
    ]
    beside = [
        s.name for s in find(summarize(OWN["parallel, one norm"]), "decoder", "block")[0].children
    ]
    assert beside == ["norm", "self-attention", "feed-forward", "add"]


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
