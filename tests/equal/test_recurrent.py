"""What came before stacks of attention: the same answers by other ways, and from PyTorch's own modules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.caches.kv_cache import DecoderState
from regard.core.context import Context
from regard.core.encoder_output import EncoderOutput
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import FullMask, PaddingMask
from regard.core.mixers import scaled_dot_product_attention
from regard.core.probe import NO_PROBE, Probe
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy
from regard.families.encoder_decoders.recurrent import FAMILIES, preset
from regard.lab.show.modules import summarize
from regard.system.errors import ModelError
from regard.wirings.baselines.additive_attention import AdditiveAttention, AlignmentAttention
from regard.wirings.baselines.convolutional import ConvolutionalDecoder
from regard.wirings.baselines.recurrent import RecurrentDecoder, RecurrentEncoder, RecurrentState
from regard.wirings.encoder_decoder import EncoderDecoder

CELLS: tuple[Any, ...] = ("rnn", "gru", "lstm")
LOOKS: list[spec.BahdanauAttention | spec.LuongAttention | None] = [
    None,
    *(
        spec.BahdanauAttention(score)
        for score in (spec.AdditiveScore(7), spec.GeneralScore(), spec.ScaledDotScore())
    ),
    *(
        spec.LuongAttention(score)
        for score in (spec.DotScore(), spec.GeneralScore(), spec.AdditiveScore())
    ),
    spec.LuongAttention(spec.GeneralScore(), temperature=0.5, feeding=True),
]
MODELS = [
    *(
        spec.SequenceToSequence(
            12, spec.Tokens(31, None), spec.Tokens(31, None), spec.Recurrent(cell, 2, both),
            spec.Recurrent(cell, 1 + both, looks=looks),
        )
        for cell, both in zip(CELLS, (False, True, True), strict=True)
        for looks in LOOKS
    ),
    *(preset(family, "tiny", 31, 31, d_model=10, layers=1, max_length=40) for family in ("convs2s", "bytenet")),
    replace(
        preset("convs2s", "tiny", 31, 23, d_model=8, share="none"),
        decoder=spec.Convolutional(2, spec.GatedUnit(4), "attention"),
    ),
]  # fmt: skip


def named(model: spec.SequenceToSequence) -> str:
    part = model.decoder
    return (
        f"{part.cell} {part.looks}"
        if isinstance(part, spec.Recurrent)
        else f"{part.unit} {part.sees}"
    )


def shaken(model: spec.SequenceToSequence, seed: int = 0) -> EncoderDecoder:
    torch.manual_seed(seed)
    made = build(model).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def sentences() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    padding_mask = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    return torch.randint(1, 23, (3, 9)), torch.randint(1, 23, (3, 11)), padding_mask


every = pytest.mark.parametrize("model", MODELS, ids=named)


@every
def test_sizes_are_the_formula_s_and_the_page_adds_up(model: spec.SequenceToSequence) -> None:
    assert parameter_count(model) == trainable(build(model))
    assert sum(module.parameters for module in summarize(model)) == parameter_count(model)
    assert spec.from_dict(json.loads(json.dumps(spec.to_dict(model)))) == model


@every
def test_padding_and_neighbours_change_nothing(model: spec.SequenceToSequence) -> None:
    made, (source, target, padding_mask) = shaken(model), sentences()
    together = made(source, target, padding_mask)[0]
    for row, length in enumerate((9, 4, 1)):
        alone = made(source[row : row + 1, :length], target[row : row + 1])[0]
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-9, atol=1e-9)
    other = made(torch.where(padding_mask, source, 22 - source), target, padding_mask)[0]
    torch.testing.assert_close(other, together, rtol=0, atol=0)


@every
def test_step_by_step_is_all_at_once_and_sees_nothing_ahead(model: spec.SequenceToSequence) -> None:
    made, (source, target, padding_mask) = shaken(model), sentences()
    whole = made.head(made(source, target, padding_mask)[0])
    encoded = made.encode(source, padding_mask)
    state = made.start(encoded, capacity=11)
    pieces = [made.step(piece, state) for piece in target.split([1, 1, 5, 4], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-9, atol=1e-9)
    changed = target.clone()
    changed[:, 6:] = 3
    torch.testing.assert_close(
        made.head(made(source, changed, padding_mask)[0])[:, :6], whole[:, :6], rtol=0, atol=1e-12
    )
    # Beams share their sentence's memory, are reordered, and leave.
    state = made.start(encoded, width=2, capacity=11)
    made.step(target[:, :1].repeat_interleave(2, 0), state)
    state.reorder(torch.tensor([1, 0, 2, 2, 5, 4]))
    state.keep(torch.tensor([0, 2]))
    after = made.step(target[[0, 2], 1:2].repeat_interleave(2, 0), state)
    torch.testing.assert_close(after[::2, 0], whole[[0, 2], 1], rtol=1e-9, atol=1e-9)


@every
def test_everything_is_trained(model: spec.SequenceToSequence) -> None:
    made, (source, target, padding_mask) = shaken(model).train(), sentences()
    made.head(made(source, target, padding_mask)[0]).logsumexp(-1).sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_beam_of_one_is_greedy_and_a_wide_one_is_no_worse(family: str) -> None:
    made = shaken(preset(family, "tiny", 31, 31, d_model=16, layers=2))
    sources = [[5, 6, 7, 2], [9, 2], [3, 8, 3, 8, 3, 8, 2]]
    ends = SpecialTokens(0, 1, 2, (0, 1))
    greedy, one, four = (
        [found[0] for found in decode(made, sources, ends, DecodingSettings(strategy))]
        for strategy in (Greedy(), BeamSearch(1), BeamSearch(4))
    )
    assert [g.tokens for g in greedy] == [o.tokens for o in one]
    alone = [
        decode(made, [source], ends, DecodingSettings(BeamSearch(4)))[0][0].tokens
        for source in sources
    ]
    assert [found.tokens for found in four] == alone


# ------------------------------------------------------------------ against PyTorch, and against loops


@pytest.mark.parametrize("cell", CELLS)
def test_a_bidirectional_encoder_is_pytorch_s_over_packed_sequences(cell: str) -> None:
    torch.manual_seed(0)
    kind: Any = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[cell]
    theirs = kind(8, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    ours = RecurrentEncoder(spec.Recurrent(cell, 2, True), 8).double()  # type: ignore[arg-type]
    for i in range(2):
        for part, suffix in ((ours.cells[i], ""), (ours.backwards[i], "_reverse")):
            for name, parameter in part.named_parameters():
                parameter.data.copy_(getattr(theirs, name.replace("l0", f"l{i}") + suffix))
    x, lengths = (
        torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True),
        torch.tensor([7, 3, 1]),
    )
    padding_mask = torch.arange(7) < lengths[:, None]
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    wanted, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    found = ours(x, padding_mask) * padding_mask[:, :, None]
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    (one,) = torch.autograd.grad((wanted**2).sum(), x, retain_graph=True)
    (two,) = torch.autograd.grad((found**2).sum(), x)
    torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


def step(
    cell: str, part: Any, x: Tensor, h: Tensor, c: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The equations of the cells, one gate after the other."""
    width = h.shape[-1]
    given = (x @ part.weight_ih_l0.T + part.bias_ih_l0).split(width, dim=-1)
    kept = (h @ part.weight_hh_l0.T + part.bias_hh_l0).split(width, dim=-1)
    if cell == "rnn":
        return torch.tanh(given[0] + kept[0]), None
    if cell == "gru":
        reset, update = torch.sigmoid(given[0] + kept[0]), torch.sigmoid(given[1] + kept[1])
        return (1 - update) * torch.tanh(given[2] + reset * kept[2]) + update * h, None
    assert c is not None
    i, f, g, o = (a + b for a, b in zip(given, kept, strict=True))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("looks", LOOKS, ids=str)
def test_a_decoder_is_a_loop_over_its_equations(cell: Any, looks: Any) -> None:
    """Forward and gradients, with the attention written out for each pair."""
    d = 6
    whole = spec.SequenceToSequence(
        d,
        spec.Tokens(9, None),
        spec.Tokens(9, None),
        spec.Recurrent(cell, 1, True),
        spec.Recurrent(cell, 2, looks=looks),
    )
    made = shaken(whole).decoder
    assert isinstance(made, RecurrentDecoder)
    x, memory = (
        torch.randn(2, 5, d).double().requires_grad_(),
        torch.randn(2, 4, d).double().requires_grad_(),
    )
    padding_mask = torch.tensor([[True] * 4, [True, True, False, False]])
    found = made(x, memory=EncoderOutput(memory, padding_mask))

    def attend(h: Tensor, row: int) -> Tensor:
        assert looks is not None
        part, scores = made.attention, []
        assert part is not None
        for s in range(int(padding_mask[row].sum())):
            key = memory[row, s]
            match looks.score:
                case spec.AdditiveScore():
                    hidden = torch.tanh(part.query(h) + part.key(key))  # type: ignore[misc]
                    scores.append(part.mixer.direction @ hidden)  # type: ignore[union-attr, operator]
                case spec.GeneralScore():
                    scores.append(h @ part.key(key))  # type: ignore[misc]
                case spec.DotScore():
                    scores.append(h @ key)
                case spec.ScaledDotScore():
                    scores.append(h @ key / d**0.5)
        weights = torch.softmax(torch.stack(scores) / looks.temperature, dim=0)
        return weights @ memory[row, : len(weights)]

    bridge, rows = made.bridge, []
    assert bridge is not None
    for row, end in enumerate((3, 1)):
        summary = torch.cat([memory[row, end, : d // 2], memory[row, 0, d // 2 :]])
        h = list(torch.tanh(bridge.hidden(summary)).split(d))
        c = list(bridge.cell(summary).split(d)) if bridge.cell is not None else [None, None]
        fed, given = torch.zeros(d).double(), []
        for t in range(5):
            y = x[row, t]
            if isinstance(looks, spec.BahdanauAttention):
                context = attend(h[-1], row)
                y = torch.cat([y, context])
            elif looks is not None and looks.feeding:
                y = torch.cat([y, fed])
            for i, part in enumerate(made.cells):
                h[i], c[i] = step(cell, part, y, h[i], c[i])
                y = h[i]
            if looks is not None:
                context = context if isinstance(looks, spec.BahdanauAttention) else attend(y, row)
                y = fed = torch.tanh(made.attention.join(torch.cat([context, y])))  # type: ignore[union-attr]
            given.append(y)
        rows.append(torch.stack(given))
    wanted = torch.stack(rows)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    inputs = [x, memory, *made.parameters()]
    for one, two in zip(
        torch.autograd.grad((found**2).sum(), inputs),
        torch.autograd.grad((wanted**2).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_padding_in_front_leaves_the_state_alone(cell: str) -> None:
    torch.manual_seed(0)
    part = RecurrentDecoder(spec.Recurrent(cell, 2), 6).double()  # type: ignore[arg-type]
    x = torch.randn(2, 5, 6).double()
    padding_mask = torch.arange(5) >= torch.tensor([[0], [3]])
    state = part.start(2, 0)
    found = part(
        x,
        padding_mask,
        context=Context(state=DecoderState(state)),
    )
    torch.testing.assert_close(
        found[1:, 3:],
        part(x[1:, 3:]),
        rtol=1e-9,
        atol=1e-9,
    )
    torch.testing.assert_close(found[:1], part(x[:1]), rtol=1e-9, atol=1e-9)
    assert isinstance(state[0].self_attention, RecurrentState)
    torch.testing.assert_close(state[0].self_attention.hidden[:, -1], found[:, -1])


def test_a_gated_decoder_is_its_equations() -> None:
    """Gehring et al. 2017, section 3: convolution of what came before, gate, attention in each layer."""
    d, half = 6, 0.5**0.5
    tokens = spec.Tokens(9, None)
    decoder = spec.Convolutional(2, spec.GatedUnit(3), "attention")
    made = shaken(
        spec.SequenceToSequence(d, tokens, tokens, spec.Convolutional(1), decoder)
    ).decoder
    x, memory = torch.randn(1, 5, d).double(), torch.randn(1, 4, 2 * d).double()
    found = made(x, memory=EncoderOutput(memory))
    z, values, h = memory[0, :, :d], memory[0, :, d:], x[0]
    assert isinstance(made, ConvolutionalDecoder)
    for unit, glance in zip(made.units, made.glances, strict=True):
        weight = unit.convolution.weight
        bias: Any = unit.convolution.bias
        gated = []
        for t in range(5):
            both = bias
            for j in range(3):
                if t - 2 + j >= 0:
                    both = both + weight[:, :, j] @ h[t - 2 + j]
            gated.append(both[:d] * torch.sigmoid(both[d:]))
        y = torch.stack(gated)
        q = (glance.query(y) + x[0]) * half
        y = (y + glance.output(torch.softmax(q @ z.T, dim=-1) @ values)) * half
        h = (h + y) * half
    torch.testing.assert_close(found[0], h, rtol=1e-9, atol=1e-9)


def test_an_aligned_decoder_is_told_the_place_beneath_it() -> None:
    """Output t of ByteNet knows of memory t and what came before it, as far as its dilated convolutions reach back."""
    tokens, unit = spec.Tokens(9, None), spec.BottleneckUnit(3, (1, 2))
    decoder = spec.Convolutional(2, unit, "aligned")
    made = shaken(
        spec.SequenceToSequence(6, tokens, tokens, spec.Convolutional(1, unit), decoder)
    ).decoder
    x, memory = torch.randn(1, 12, 6).double(), torch.randn(1, 10, 12).double().requires_grad_()
    padding_mask = torch.arange(10)[None] < 9
    found = made(x, memory=EncoderOutput(memory, padding_mask))
    for t in range(12):
        (felt,) = torch.autograd.grad(found[0, t].sum(), memory, retain_graph=True)
        seen = felt[0, :, 6:].abs().sum(dim=-1).nonzero()[:, 0].tolist()
        assert seen == [s for s in range(9) if t - 6 <= s <= t]


# ------------------------------------------------------------------ scores


@pytest.mark.parametrize(
    "score",
    [spec.DotScore(), spec.ScaledDotScore(), spec.GeneralScore(), spec.AdditiveScore(5)],
    ids=str,
)
def test_a_low_temperature_looks_up_one_place_and_a_high_one_all_alike(
    score: spec.AttentionScore,
) -> None:
    found = {}
    memory, query = torch.randn(1, 6, 8).double(), torch.randn(1, 3, 8).double()
    attention_mask = AttentionMask(FullMask(), torch.arange(1), torch.arange(6), 1)
    for temperature in (1.0, 1e-6, 1e9):
        torch.manual_seed(3)
        model = replace(
            MODELS[0],
            d_model=8,
            decoder=spec.Recurrent("rnn", looks=spec.LuongAttention(score, temperature)),
        )
        made = build(model).decoder.double()
        assert isinstance(made, RecurrentDecoder)
        part = made.attention
        assert isinstance(part, AlignmentAttention)
        found[temperature] = part(query, part.keys_and_values(memory), attention_mask, NO_PROBE)
        asked = part.mixer.weights(
            part.queries(query, part.keys_and_values(memory)),
            part.keys_and_values(memory).k,
            attention_mask,
            torch.arange(3),
        )
        torch.testing.assert_close(
            found[temperature], (asked @ memory[:, None])[:, 0], rtol=1e-9, atol=1e-9
        )
        if temperature == 1.0:
            best = asked[0, 0].argmax(dim=-1)
    torch.testing.assert_close(found[1e-6], memory[:, best], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        found[1e9], memory.mean(dim=1, keepdim=True).expand(1, 3, 8), rtol=1e-6, atol=1e-6
    )


def test_a_query_that_may_see_nothing_finds_zeros() -> None:
    mixer = AdditiveAttention(4)
    attention_mask = AttentionMask(
        PaddingMask(torch.tensor([[False, False], [True, False]])),
        torch.arange(1),
        torch.arange(2),
        2,
    )
    q, k = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 2, 4)
    found = mixer(q, k, k, attention_mask)
    assert found[0].abs().max() == 0
    torch.testing.assert_close(found[1], k[1, :, :1].expand(1, 3, 4))


def test_the_fused_kernel_is_the_definition() -> None:
    made, (source, target, padding_mask) = (
        shaken(preset("luong", "tiny", 31, 31, d_model=16)),
        sentences(),
    )
    assert isinstance(made.decoder, RecurrentDecoder)
    assert isinstance(made.decoder.attention, AlignmentAttention)
    fused = made(source, target, padding_mask)[0]
    made.decoder.attention.mixer.kernel = scaled_dot_product_attention.explicit  # type: ignore[union-attr, assignment]
    torch.testing.assert_close(made(source, target, padding_mask)[0], fused, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------ what is recorded


@pytest.mark.parametrize("family", ["bahdanau", "luong", "luong_feeding", "convs2s"])
def test_alignments_are_recorded_for_all_steps(family: str) -> None:
    made, (source, target, padding_mask) = (
        shaken(preset(family, "tiny", 31, 31, d_model=16, layers=2)),
        sentences(),
    )
    probe = Probe(["decoder.*"])
    plain = made(source, target, padding_mask)[0]
    torch.testing.assert_close(
        made(source, target, padding_mask, Context(probe=probe))[0], plain, rtol=0, atol=0
    )
    weights = probe.weights("decoder.0.cross")
    assert weights.shape == (3, 1, 11, 9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 11).double())
    assert weights[1, :, :, 4:].abs().max() == 0
    values = probe.attentions["decoder.0.cross"].v
    torch.testing.assert_close(
        probe.tensors["decoder.0.cross.mixed"], weights @ values, rtol=1e-9, atol=1e-9
    )
    assert probe.tensors["decoder.1.residual"].shape[:2] == (3, 11)
    off = Probe(edits={"decoder.0.cross.mixed": torch.zeros_like})
    assert (made(source, target, padding_mask, Context(probe=off))[0] - plain).abs().max() > 1e-3


# ------------------------------------------------------------------ refusals


def test_what_does_not_exist_is_refused() -> None:
    tokens = spec.Tokens(9, None)
    gru, both, looks = (
        spec.Recurrent("gru"),
        spec.Recurrent("gru", 1, True),
        spec.Recurrent("gru", looks=spec.LuongAttention()),
    )
    gated, seen = spec.Convolutional(2), spec.Convolutional(2, sees="attention")
    for d, encoder, decoder, message in (
        (8, gru, both, "cannot be bidirectional"), (8, looks, gru, "no other sequence"), (7, both, gru, "an even d_model"),
        (8, gated, gated, "must attend"), (8, seen, seen, "no other sequence"), (8, gated, gru, "cannot be combined"),
        (8, spec.Convolutional(2, spec.GatedUnit(4)), seen, "must be odd, not 4"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=message):
            spec.SequenceToSequence(d, tokens, tokens, encoder, decoder)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="one vocabulary"):
        spec.SequenceToSequence(8, tokens, spec.Tokens(10, None), gru, gru)
    for bad in (
        lambda: spec.LuongAttention(temperature=0.0),
        lambda: spec.Recurrent("gru", 0),
        lambda: spec.AdditiveScore(0),
    ):
        with pytest.raises(ModelError):
            bad()


def test_it_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    from regard.families import folder as folders

    for model in MODELS[:3] + MODELS[-2:]:
        made = shaken(model).float()
        folder = tmp_path / str(MODELS.index(model))
        folder.mkdir()
        (folder / "config.json").write_text(
            json.dumps(folders.describe(model, folders.SpecialTokenIds(0, 1, 2)))
        )
        folders.write_weights(folder / "model.safetensors", made, model)
        again = regard.load(folder, say=lambda _: None).model
        for one, two in zip(made.parameters(), again.parameters(), strict=True):
            assert torch.equal(one, two)
