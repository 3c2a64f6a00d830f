"""The Evoformer: against ESMFold's folding trunk in transformers, against AlphaFold 2's algorithms
written out, and what it must not change by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard import spec
from regard.builder import build
from regard.core.block import LayerInputs
from regard.core.context import Context, LayerContext
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import FullMask
from regard.core.positions.position_terms import PositionTerms
from regard.core.probe import Probe
from regard.core.stacks.evoformer import EvoformerBlock, Streams
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

esmfold = pytest.importorskip("transformers.models.esm.modeling_esmfold")

SEQUENCES, RESIDUES, WIDTH, PAIRS, HEADS = 5, 7, 24, 12, 4


def described(layers: int = 2, residues: int = RESIDUES, **scheme: Any) -> spec.Encoder:
    attention = spec.Attention(HEADS, WIDTH // HEADS, WIDTH // HEADS, bias="o")
    block = spec.Block(attention, spec.FeedForward(4 * WIDTH), residual=spec.PreNorm(), dropout=0.0)
    options: dict[str, Any] = {"triangles": PAIRS, "outer": PAIRS // 2, "last": True, "reach": 4}
    triangles = spec.Attention(PAIRS // 4, 4, 4, bias="o")
    evoformer = spec.Evoformer(PAIRS, triangles, spec.FeedForward(4 * PAIRS), **options | scheme)
    tokens = spec.Tokens(25, position=None, columns=residues, dropout=0.0, scale=False)
    return spec.Encoder(WIDTH, tokens, spec.Stack.of(layers, block, scheme=evoformer))


def built(seed: int, **options: Any) -> Any:
    torch.manual_seed(seed)
    model = build(described(**options)).eval()
    perturb(model)
    return model


def streams(model: Any, tokens: Tensor, padding_mask: Tensor | None = None) -> Streams:
    """The alignment [B, S, R, D] and the pairs that come out."""
    probe = Probe(["encoder.*.pairs"])
    rows, columns = tokens.shape[1:]
    mask = None if padding_mask is None else padding_mask.flatten(1)
    with torch.no_grad():
        hidden, _ = model(tokens.flatten(1), mask, Context(probe=probe))
    last = f"encoder.{model.stack.layers - 1}.pairs"
    return Streams(hidden.unflatten(1, (rows, columns)), probe.tensors[last])


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


# --- transformers ---------------------------------------------------------------------------------


def fused(*parts: Any) -> dict[str, Tensor]:
    """Several of their linear maps as one of ours."""
    weights = {"weight": torch.cat([part.weight for part in parts])}
    if parts[0].bias is not None:
        weights["bias"] = torch.cat([part.bias for part in parts])
    return weights


def load_block(ours: EvoformerBlock, theirs: Any) -> None:
    """Their block's weights."""

    def load(part: Any, *sources: Any) -> None:
        part.load_state_dict(fused(*sources))

    joint = theirs.seq_attention.proj.weight  # a head's queries, keys and values follow each other
    parts = joint.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2)
    ours.attention.project.load_state_dict({"qkv.weight": parts})
    gate: Any = ours.attention
    load(gate.gate, theirs.seq_attention.g_proj)
    load(ours.attention.output, theirs.seq_attention.o_proj)
    rows, feedforward = ours.residual.each
    load(rows.norm, theirs.layernorm_1)
    load(ours.bias.norm, theirs.pair_to_sequence.layernorm)
    load(ours.bias.project, theirs.pair_to_sequence.linear)
    inner: Any = ours.feedforward
    load(feedforward.norm, theirs.mlp_seq.mlp[0])
    load(inner.inner, theirs.mlp_seq.mlp[1])
    load(inner.outer, theirs.mlp_seq.mlp[3])
    updates: Any = ours.updates
    load(updates.outer.norm, theirs.sequence_to_pair.layernorm)
    load(updates.outer.project, theirs.sequence_to_pair.proj)
    load(updates.outer.output, theirs.sequence_to_pair.o_proj)
    norms = [residual.norm for residual in updates.residuals]
    multiplications = (theirs.tri_mul_out, theirs.tri_mul_in)
    attentions = (theirs.tri_att_start, theirs.tri_att_end)
    before = [part.layer_norm_in for part in multiplications]
    before += [part.layer_norm for part in attentions]
    for norm, source in zip(norms, [*before, theirs.mlp_pair.mlp[0]], strict=True):
        load(norm, source)
    for part, source in zip(updates.multiplications, multiplications, strict=True):
        load(part.edges, source.linear_a_p, source.linear_b_p)
        load(part.edge_gates, source.linear_a_g, source.linear_b_g)
        load(part.norm, source.layer_norm_out)
        load(part.output, source.linear_z)
        load(part.gate, source.linear_g)
    for part, source in zip(updates.attentions, attentions, strict=True):
        heads = source.mha
        load(part.bias.project, source.linear)
        load(part.attention.project.qkv, heads.linear_q, heads.linear_k, heads.linear_v)
        load(part.attention.gate, heads.linear_g)
        load(part.attention.output, heads.linear_o)
    load(updates.feedforward.inner, theirs.mlp_pair.mlp[1])
    load(updates.feedforward.outer, theirs.mlp_pair.mlp[3])


@pytest.mark.parametrize("residues", [1, 7, 10])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_blocks_of_the_folding_trunk_are_ours(seed: int, residues: int) -> None:
    """Two blocks and the vectors of distances, for proteins of two lengths in one batch."""
    ours = built(
        seed, residues=residues, reach=3, column_attention=False, joined="product_and_difference"
    )
    config = esmfold.EsmFoldConfig(
        trunk={
            "num_blocks": 2,
            "sequence_state_dim": WIDTH,
            "pairwise_state_dim": PAIRS,
            "sequence_head_width": WIDTH // HEADS,
            "pairwise_head_width": 4,
            "position_bins": 3,
        }
    ).trunk
    blocks = [esmfold.EsmFoldTriangularSelfAttentionBlock(config).eval() for _ in range(2)]
    distances = esmfold.EsmFoldRelativePosition(config)
    for block, part in zip(ours.stack.blocks, blocks, strict=True):
        perturb(part)
        load_block(block, part)
    ours.stack.first.load_state_dict({"weight": distances.embedding.weight[1:]})
    tokens = torch.randint(25, (2, 1, residues))
    mask = torch.arange(residues) < torch.tensor([[residues], [max(1, residues - 3)]])
    found = streams(ours, tokens, mask[:, None])
    with torch.no_grad():
        x = ours.input(tokens[:, 0])
        index = torch.arange(residues).expand(2, -1)
        pairs = distances(index, mask)
        for part in blocks:
            x, pairs = part(x, pairs, mask=mask.float())  # which it subtracts from
    close(found.x[:, 0][mask], x[mask])
    both = mask[:, None] & mask[:, :, None]
    close(found.pairs[both], pairs[both])


# --- the paper's algorithms -----------------------------------------------------------------------


def gated(part: Any, x: Tensor, bias: Tensor | None) -> Tensor:
    """Algorithm 7 for one row x [n, D], head by head; bias [H, n, n]."""
    q, k, v = part.project.qkv(x).chunk(3, dim=-1)
    gate = torch.sigmoid(part.gate(x))
    heads = []
    for head, (a, b, c, g) in enumerate(
        zip(*(y.chunk(part.heads, dim=-1) for y in (q, k, v, gate)), strict=True)
    ):
        scores = a @ b.T / a.shape[1] ** 0.5
        if bias is not None:
            scores = scores + bias[head]
        heads.append(g * (scores.softmax(dim=-1) @ c))
    return part.output(torch.cat(heads, dim=-1))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_is_algorithm_6(seed: int) -> None:
    """Row by row, column by column, pair by pair."""
    block: Any = built(seed, layers=1).stack.blocks[0]
    x = torch.randn(SEQUENCES, RESIDUES, WIDTH)
    pairs = torch.randn(RESIDUES, RESIDUES, PAIRS)
    found = applied(block, x[None], pairs[None])
    rows, feedforward = (residual.norm for residual in block.residual.each)
    with torch.no_grad():
        bias = block.bias.project(block.bias.norm(pairs)).permute(2, 0, 1)
        x = x + torch.stack([gated(block.attention, row, bias) for row in rows(x)])
        columns = block.column_residual.norm(x).transpose(0, 1)
        x = x + torch.stack([gated(block.columns, one, None) for one in columns], dim=1)
        x = x + block.feedforward(feedforward(x))
        updates = block.updates
        left, right = updates.outer.project(updates.outer.norm(x)).chunk(2, dim=-1)
        mean = torch.stack(
            [
                torch.stack(
                    [
                        torch.stack(
                            [
                                torch.outer(a, b)
                                for a, b in zip(left[:, i], right[:, j], strict=True)
                            ]
                        ).mean(dim=0)
                        for j in range(RESIDUES)
                    ]
                )
                for i in range(RESIDUES)
            ]
        )
        pairs = pairs + updates.outer.output(mean.flatten(2))
        norms = [residual.norm for residual in updates.residuals]
        for part, norm, outgoing in zip(
            updates.multiplications, norms, (True, False), strict=False
        ):
            z = norm(pairs)
            edges = torch.sigmoid(part.edge_gates(z)) * part.edges(z)
            a, b = edges.chunk(2, dim=-1)
            if not outgoing:
                a, b = a.transpose(0, 1), b.transpose(0, 1)
            joined = torch.stack(
                [torch.stack([(one * other).sum(dim=0) for other in b]) for one in a]
            )
            pairs = pairs + torch.sigmoid(part.gate(z)) * part.output(part.norm(joined))
        start, end = updates.attentions
        z = norms[2](pairs)
        bias = start.bias.project(z).permute(2, 0, 1)
        pairs = pairs + torch.stack([gated(start.attention, row, bias) for row in z])
        z = norms[3](pairs).transpose(0, 1)
        bias = end.bias.project(z).permute(2, 0, 1)
        columns = torch.stack([gated(end.attention, row, bias) for row in z])
        pairs = pairs + columns.transpose(0, 1)
        pairs = pairs + updates.feedforward(norms[4](pairs))
    close(found.x[0], x)
    close(found.pairs[0], pairs)


def applied(block: EvoformerBlock, x: Tensor, pairs: Tensor) -> Streams:
    """A block on an alignment [B, S, R, D] and pairs [B, R, R, C]."""
    rows, columns = x.shape[1:3]
    places = torch.arange(rows * columns)
    inputs = LayerInputs(AttentionMask(FullMask(), places, places), PositionTerms(places))
    with torch.no_grad():
        found = block(Streams(x.flatten(1, 2), pairs), inputs, LayerContext(grid=(rows, columns)))
    return Streams(found.x.unflatten(1, (rows, columns)), found.pairs)


# --- what it must not change by -------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_the_sequences_changes_nothing_but_their_order(seed: int) -> None:
    model = built(seed)
    tokens = torch.randint(25, (2, SEQUENCES, RESIDUES))
    order = torch.randperm(SEQUENCES)
    there = streams(model, tokens)
    mixed = streams(model, tokens[:, order])
    close(mixed.x, there.x[:, order])
    close(mixed.pairs, there.pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_residues_are_told_apart_by_their_pairs_alone(seed: int) -> None:
    block: Any = built(seed, layers=1).stack.blocks[0]
    x = torch.randn(2, SEQUENCES, RESIDUES, WIDTH)
    pairs = torch.randn(2, RESIDUES, RESIDUES, PAIRS)
    order = torch.randperm(RESIDUES)
    there = applied(block, x, pairs)
    mixed = applied(block, x[:, :, order], pairs[:, order][:, :, order])
    close(mixed.x, there.x[:, :, order])
    close(mixed.pairs, there.pairs[:, order][:, :, order])


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_changes_nothing(seed: int) -> None:
    """Sequences and residues that are padding; and a batch is as its rows alone."""
    model = built(seed)
    tokens = torch.randint(25, (2, SEQUENCES, RESIDUES))
    mask = torch.ones(2, SEQUENCES, RESIDUES, dtype=torch.bool)
    mask[1, 3:] = False
    mask[1, :, 5:] = False
    there = streams(model, tokens, mask)
    other = tokens.where(mask, torch.randint(25, tokens.shape))
    again = streams(model, other, mask)
    close(again.x[mask], there.x[mask])
    whole = streams(model, tokens[:1])
    close(there.x[:1], whole.x)
    close(there.pairs[:1], whole.pairs)
    model.input.columns = 5
    alone = streams(model, tokens[1:, :3, :5])
    close(there.x[1:, :3, :5], alone.x)
    close(there.pairs[1:, :5, :5], alone.pairs)


# --- looking, training, wrong inputs --------------------------------------------------------------


def test_attention_is_seen_along_sequences_and_along_columns() -> None:
    model = built(0)
    tokens = torch.randint(25, (1, SEQUENCES, RESIDUES))
    probe = Probe(["encoder.*.self", "encoder.*.columns"])
    model(tokens.flatten(1), None, Context(probe=probe))
    sequence = torch.arange(SEQUENCES).repeat_interleave(RESIDUES)
    residue = torch.arange(RESIDUES).repeat(SEQUENCES)
    for name, same in {"self": sequence, "columns": residue}.items():
        weights = probe.weights(f"encoder.1.{name}")
        close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
        assert weights[..., same[:, None] != same].eq(0).all()
        assert probe.attentions[f"encoder.1.{name}"].q.shape[2] == SEQUENCES * RESIDUES


@pytest.mark.parametrize("checkpointed", [False, True])
def test_all_parameters_are_trained(checkpointed: bool) -> None:
    """The last block has no update of pairs, which nobody would read."""
    model = built(0, last=False).train()
    model.stack.activation_checkpointing = checkpointed
    tokens = torch.randint(25, (2, SEQUENCES * RESIDUES))
    hidden, _ = model(tokens)
    hidden.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_an_alignment_has_rows_of_one_width() -> None:
    with pytest.raises(ModelError, match="36 positions"):
        built(0)(torch.zeros(1, 36, dtype=torch.long))
