"""A page shows every part once: its counts are those of the modules, and add up to the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regard import size, spec
from regard.errors import ModelError
from regard.families.folder import FAMILIES, describe
from regard.families.tensor_table import outline
from regard.families.transformer import transformer
from regard.show.layers import Station, stations
from regard.show.page import data, page
from regard.show.resolve import Subject, subject

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
    return FAMILIES[kind].spec(config)


def every() -> dict[str, Any]:
    return {**{kind: lambda kind=kind: published(kind) for kind in FAMILIES if kind != "regard"},
            **{name: lambda name=name: OWN[name] for name in OWN}}  # fmt: skip


def about(name: str) -> Subject:
    model = every()[name]()
    said = describe(model)
    return Subject(name, model, said["model_type"], said["architectures"][0])


def found(many: list[Station] | tuple[Station, ...], *path: str) -> list[Station]:
    here = [station for station in many if station.name == path[0]]
    return (
        here
        if len(path) == 1
        else [inner for station in here for inner in found(station.inside, *path[1:])]
    )


def numbers(module: Any) -> int:
    return sum(part.numel() for part in module.parameters() if part.requires_grad)


@pytest.mark.parametrize("name", every())
def test_parts_add_up_and_are_those_of_the_modules(name: str) -> None:
    model = about(name).spec
    made = stations(model)
    assert sum(station.parameters for station in made) == size.parameters(model)
    built: Any = outline(model)
    towers = (
        [("text tower", built.text), ("image tower", built.image)]
        if isinstance(model, spec.DualEncoder)
        else [("", built)]
    )
    for tower, module in towers:
        mine = found(made, tower)[0].inside if tower else made
        if isinstance(model, spec.EncoderDecoder):
            sides = [
                ("encoder side", "encoder", module.encoder),
                ("decoder side", "decoder", module.decoder),
            ]
            compared = [(found(mine, side, stack)[0], parts) for side, stack, parts in sides]
        else:
            compared = [
                (
                    found(mine, "decoder" if isinstance(model, spec.Decoder) else "encoder")[0],
                    module.stack,
                )
            ]
            fronts = [s for s in mine if s.name in ("embedding", "patches", "convolutions")]
            front = module.tokens if isinstance(model, spec.Decoder) else module.input
            assert sum(s.parameters for s in fronts) == numbers(front)
        for station, stack in compared:
            assert station.parameters == numbers(stack)
            blocks, first = found([station], station.name, "block"), stack.blocks[0]
            block = blocks[0]
            assert block.once == numbers(first)
            assert sum(each.times for each in blocks) == stack.layers
            assert all(part.own >= 0 for each in blocks for part in each.inside)
            for line, part in (
                ("self-attention", first.attention),
                ("cross-attention", first.cross),
            ):
                for shown in found(block.inside, line):
                    assert shown.parameters == numbers(part)
                    assert found(shown.inside, "output")[0].parameters == numbers(part.output)
            assert found(block.inside, "feed-forward")[0].parameters == numbers(first.feedforward)


@pytest.mark.parametrize("name", every())
def test_the_page_fits_its_columns_and_the_data_is_json(name: str) -> None:
    subject = about(name)
    lines = [line.plain for line in page(subject)]
    assert max(map(len, lines)) <= 100
    assert f"{size.parameters(subject.spec):,}" in "\n".join(lines)
    told = json.loads(json.dumps(data(subject)))
    assert spec.from_dict(told["spec"]) == subject.spec
    assert sum(station["parameters"] for station in told["stations"]) == told["parameters"]


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
        for s in found(stations(OWN["share all"]), "encoder side", "encoder", "block")[0].inside
    ]
    assert post == ["self-attention", "add & norm", "feed-forward", "add & norm"]
    pre = transformer(37, 37, d_model=24, heads=3, layers=1, residual=spec.PreNorm())
    names = [s.name for s in found(stations(pre), "decoder side", "decoder", "block")[0].inside]
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
        s.name for s in found(stations(OWN["parallel, one norm"]), "decoder", "block")[0].inside
    ]
    assert beside == ["norm", "self-attention", "feed-forward", "add"]


def test_presets_and_what_is_neither() -> None:
    assert subject("vaswani:base").architecture == "MarianMTModel"
    assert size.parameters(subject("vaswani:base").spec) == 63_082_496
    with pytest.raises(ModelError, match="did you mean 'vaswani:base'"):
        subject("vaswani:bas")
    with pytest.raises(ModelError, match="neither a model folder nor a preset"):
        subject("nowhere")


@pytest.mark.parametrize(
    "name", ["gpt:175b", "palm:540b", "bert:base", "electra:small", "t5:11b", "bart:large"]
)
def test_presets_are_shown_at_any_size(name: str) -> None:
    about = subject(name)
    assert data(about)["parameters"] == size.parameters(about.spec)
