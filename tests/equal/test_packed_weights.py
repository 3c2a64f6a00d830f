"""Weights packed for decoding: the same answers in float32, near ones below it."""

from __future__ import annotations

import pytest
import torch

from regard import spec
from regard.builder import build, edit
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit
from regard.families.encoder_decoders.transformer import transformer
from regard.system.errors import SettingError
from regard.wirings.decoder import Decoder
from regard.wirings.encoder_decoder import EncoderDecoder

BLOCK = spec.Block(
    spec.Attention(4, 8, 8, groups=2, bias="qv"),
    spec.GatedFeedForward(40),
    residual=spec.PreNorm(),
    dropout=0.1,
)
DECODER = spec.Decoder(
    32,
    spec.Tokens(50, None),
    spec.Stack.of(2, BLOCK, spec.CausalMask(), spec.Rope(), final=spec.LayerNorm()),
    tied=False,
)


def made(wiring: str) -> EncoderDecoder | Decoder:
    torch.manual_seed(3)
    described = transformer(50, 50, d_model=32, d_ff=64, heads=4, layers=2, share="all")
    model = build(DECODER if wiring == "decoder" else described).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # biases must be seen to matter
    return model  # type: ignore[return-value]


@pytest.mark.parametrize("wiring", ["encoder–decoder", "decoder"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float32", 1e-5), ("bf16", 0.05), ("int8", 0.1)]
)
def test_packed_models_compute_the_same_up_to_their_precision(
    wiring: str, precision: str, tolerance: float
) -> None:
    plain, packed = made(wiring), made(wiring)
    edit.pack_weights(packed, precision)
    with torch.inference_mode():
        tokens, target = torch.randint(0, 50, (3, 7)), torch.randint(0, 50, (3, 5))
        inputs = (tokens,) if wiring == "decoder" else (tokens, target)
        wanted, found = (model.head(model(*inputs)[0]) for model in (plain, packed))
    assert (wanted - found).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(3)])
@pytest.mark.parametrize("wiring", ["encoder–decoder", "decoder"])
def test_packed_models_decode_the_same(wiring: str, strategy: Greedy | BeamSearch) -> None:
    plain, packed = made(wiring), made(wiring)
    edit.pack_weights(packed)
    sources = [[5, 6, 7, 2], [9, 2], [11, 12, 13, 14, 15, 2]]
    ends = SpecialTokens(0, None if wiring == "decoder" else 1, 2, (0,))
    wanted, found = (
        decode(m, sources, ends, DecodingSettings(strategy, Limit.fixed(12)))
        for m in (plain, packed)
    )
    assert [[h.tokens for h in row] for row in wanted] == [[h.tokens for h in row] for row in found]


def test_packed_weights_take_less_memory_and_stay_packed() -> None:
    model = made("decoder")
    before = sum(p.numel() for p in model.parameters())
    edit.pack_weights(model, "int8")
    edit.pack_weights(model)  # once is enough
    assert sum(p.numel() for p in model.parameters()) < before / 3  # embeddings and norms
    with pytest.raises(SettingError, match="int4"):
        edit.pack_weights(made("decoder"), "int4")
