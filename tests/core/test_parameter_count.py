"""Parameter counts: those of the built model, of a formula by hand, and of the paper's Table 3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.families.encoder_decoders.transformer import SIZES, preset, transformer
from regard.system.errors import ModelError, SettingError

# Table 3 of the paper: what each row changes, and its parameters in millions. The paper's own
# effective vocabulary is
# about 41,000; `big` is the one row whose printed figure (213) no vocabulary of the others
# explains.
TABLE_3 = [
    ({}, 65),
    ({"d_k": 16}, 58),
    ({"d_k": 32}, 60),
    ({"layers": 2}, 36),
    ({"layers": 4}, 50),
    ({"layers": 8}, 80),
    ({"d_model": 256, "d_k": 32, "d_v": 32}, 28),
    ({"d_model": 1024, "d_k": 128, "d_v": 128}, 168),
    ({"d_ff": 1024}, 53),
    ({"d_ff": 4096}, 90),
    ({"position": spec.LearnedPosition(512)}, 65),
]


@pytest.mark.parametrize(("changes", "millions"), TABLE_3, ids=str)
def test_table_3(changes: dict[str, object], millions: int) -> None:
    assert parameter_count(preset("base", 41_000, 41_000, **changes)) / 1e6 == pytest.approx(
        millions, abs=0.7
    )


@pytest.mark.parametrize(
    ("changes", "millions"), [row for row in TABLE_3 if "d_model" not in row[0]], ids=str
)
def test_row_differences_need_no_vocabulary(changes: dict[str, object], millions: int) -> None:
    base, row = (parameter_count(preset("base", 100, 100, **c)) for c in ({}, changes))
    assert (row - base) / 1e6 == pytest.approx(millions - 65, abs=1.0)


def test_the_sizes_of_the_presets() -> None:
    assert round(parameter_count(preset("base", 37_000, 37_000)) / 1e6) == 63
    assert round(parameter_count(preset("base", 41_000, 41_000)) / 1e6) == 65
    assert round(parameter_count(preset("big", 41_000, 41_000)) / 1e6) == 218


@settings(max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(["all", "target", "none"]),
    st.sampled_from([spec.PostNorm(), spec.PreNorm()]),
    st.sampled_from(
        [spec.Sinusoidal(), spec.Sinusoidal("interleaved"), spec.LearnedPosition(7), None]
    ),
    st.integers(5, 9),
)
def test_the_count_on_the_meta_device_is_that_of_the_built_model(
    layers: int,
    heads: int,
    d_k: int,
    d_v: int,
    d_ff: int,
    share: Any,
    residual: object,
    position: object,
    vocabulary: int,
) -> None:
    description = transformer(
        vocabulary,
        vocabulary if share == "all" else vocabulary + 2,
        d_model=6,
        d_ff=d_ff,
        heads=heads,
        layers=layers,
        d_k=d_k,
        d_v=d_v,
        share=share,
        residual=residual,
        position=position,
    )
    model = build(description)
    assert parameter_count(description) == trainable(model)
    assert spec.from_dict(spec.to_dict(description)) == description


@pytest.mark.parametrize("name", SIZES)
def test_presets_have_as_many_as_a_formula_says(name: str) -> None:
    """Section 3 of the paper: four maps in an attention, two in a feed-forward, a norm
    after each.
    """
    model = preset(name, 1000, 1000)
    d = model.d_model
    d_ff = model.encoder.block.feedforward.d_ff
    attention = 4 * (d * d + d)
    feedforward = 2 * d * d_ff + d_ff + d
    norm = 2 * d
    encoder_layer = attention + feedforward + 2 * norm
    decoder_layer = 2 * attention + feedforward + 3 * norm
    layers = model.encoder.layers * encoder_layer + model.decoder.layers * decoder_layer
    assert parameter_count(model) == 1000 * d + layers
    with torch.device("meta"):
        assert trainable(build(model)) == parameter_count(model)


def test_sharing_three_ways_is_one_matrix() -> None:
    model = build(preset("tiny", 50, 50))
    assert model.source.table.weight is model.target.table.weight is model.head.table.weight


def test_wrong_specs_are_refused_with_a_repair() -> None:
    with pytest.raises(SettingError, match="did you mean 'tiny'"):
        preset("tinny", 5, 5)
    with pytest.raises(SettingError, match="did you mean 'activation'"):
        transformer(5, 5, activations="relu")
    with pytest.raises(SettingError, match="10 is not divisible by 3 heads"):
        transformer(5, 5, d_model=10, heads=3)
    with pytest.raises(ModelError, match="joint"):
        transformer(5, 6)
    good = spec.to_dict(preset("tiny", 5, 5))
    for change, message in (
        ({"d_model": "x"}, "cannot be"),
        ({"d_modle": 3}, "did you mean 'd_model'"),
        ({"kind": "EncoderDecodr"}, "EncoderDecoder"),
        ({"share": "some"}, "cannot be"),
    ):
        with pytest.raises(ModelError, match=message):
            spec.from_dict({**good, **change})
    with pytest.raises(ModelError, match="incomplete"):
        spec.from_dict({"kind": "EncoderDecoder"})
