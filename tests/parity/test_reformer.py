"""Reformer against transformers, hash_seed set: chunks of neighbours and of hashes, in any order,
on a ring; padding, lengths around those of the chunks, three seeds, both directions.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

import regard
from regard import spec as kinds
from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import BeamSearch, Greedy, Limit
from regard.families import folder as folders
from regard.system import disk
from regard.system.errors import DataError, ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 36,
    "attention_head_size": 7,
    "num_attention_heads": 3,
    "feed_forward_size": 50,
    "attn_layers": ["local", "lsh"],
    "axial_pos_shape": [6, 8],
    "axial_pos_embds_dim": [17, 19],
    "num_buckets": 4,
    "max_position_embeddings": 55,
    "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 6,
    "hash_seed": 3,
}
CAUSAL: dict[str, Any] = {**SMALL, "is_decoder": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "both kinds": ("Model", {**SMALL, "num_hashes": 2}),
    "causal": (
        "Model",
        {
            **CAUSAL,
            "local_num_chunks_after": 1,
            "lsh_num_chunks_after": 1,
            "chunk_size_feed_forward": 1,
        },
    ),
    "hashes alone": (
        "Model",
        {**SMALL, "attn_layers": ["lsh"] * 3, "num_buckets": [2, 4], "num_hashes": 4},
    ),
    "neighbours alone": ("Model", {**SMALL, "attn_layers": ["local"], "local_num_chunks_after": 1}),
    "own chunk alone": (
        "Model",
        {**CAUSAL, "lsh_num_chunks_before": 0, "local_num_chunks_before": 0, "num_hashes": 3},
    ),
    "round the ring": (
        "Model",
        {**SMALL, "lsh_num_chunks_before": 3, "local_num_chunks_before": 9, "num_hashes": 2},
    ),
    "one multiple of the other": (
        "Model",
        {**SMALL, "local_attn_chunk_length": 12, "attn_layers": ["lsh", "local"]},
    ),
    "language model": ("ModelWithLMHead", {**CAUSAL, "num_hashes": 3, "chunk_size_lm_head": 1}),
    "language model, in a row": (
        "ModelWithLMHead",
        {
            **CAUSAL,
            "axial_pos_embds": False,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "layer_norm_eps": 1e-3,
        },
    ),
    "masked": (
        "ForMaskedLM",
        {**SMALL, "attn_layers": ["lsh", "lsh", "local"], "lsh_num_chunks_after": 2},
    ),
    "classes": ("ForSequenceClassification", {**SMALL, "num_labels": 5, "classifier_dropout": 0.3}),
    "spans": ("ForQuestionAnswering", {**CAUSAL, "hash_seed": 0}),
}
LENGTHS = (1, 4, 5, 6, 7, 12, 13, 24, 31, 36, 47)


def saved(task: str, config: dict[str, Any], seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    model = getattr(transformers, f"Reformer{task}")(transformers.ReformerConfig(**config)).eval()
    perturb(model, 0.2)
    model.save_pretrained(out)
    return model


def batch(length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    padding_mask = (
        torch.arange(length)
        < torch.tensor([length, math.ceil(length / 2), max(1, length - 3)])[:, None]
    )
    return torch.randint(1, 61, (3, length), generator=chance).masked_fill(
        ~padding_mask, 0
    ), padding_mask


@torch.inference_mode()
def wanted(
    model: Any, tokens: torch.Tensor, padding_mask: torch.Tensor | None, **more: Any
) -> torch.Tensor:
    out = model(
        input_ids=tokens,
        attention_mask=None if padding_mask is None else padding_mask.long(),
        **more,
    )
    if "start_logits" in out:
        return torch.stack([out.start_logits, out.end_logits], dim=-1)
    return out.last_hidden_state if "last_hidden_state" in out else out.logits


@torch.inference_mode()
def our_outputs(
    model: Any, tokens: torch.Tensor, padding_mask: torch.Tensor | None
) -> torch.Tensor:
    hidden, _ = model(tokens, padding_mask)
    if getattr(model, "labels", None) is not None:
        return model.classes(hidden, padding_mask)  # type: ignore[no-any-return]
    return hidden if model.lm_head is None else model.lm_head(hidden)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, padding_mask: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    if theirs.ndim == 3:
        ours, theirs = ours[padding_mask], theirs[padding_mask]
    assert (ours - theirs).abs().max().item() <= 2e-5 * max(1.0, theirs.abs().mean().item())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_open_run_and_write_back(name: str, seed: int, tmp_path: Path) -> None:
    task, config = CASES[name]
    model = saved(task, config, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    assert kinds.from_dict(kinds.to_dict(opened.spec)) == opened.spec
    for length in LENGTHS:
        tokens, padding_mask = batch(length, seed)
        for mask in (None, padding_mask):
            everywhere = torch.ones_like(padding_mask) if mask is None else mask
            assert_close(our_outputs(ours, tokens, mask), wanted(model, tokens, mask), everywhere)

    back = tmp_path / "ours"
    back.mkdir()
    config_json = folders.describe(opened.spec, positions=opened.positions)
    assert config_json["model_type"] == "reformer"
    disk.write_json(back / "config.json", config_json)
    folders.write_weights(back / "model.safetensors", ours, opened.spec, opened.positions)
    before, after = (
        load_file(place / "model.safetensors") for place in (tmp_path / "theirs", back)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again, report = type(model).from_pretrained(back, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(
        wanted(again.eval(), tokens, None), wanted(model, tokens, None), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ["both kinds", "language model"])
def test_padding_in_front(name: str, tmp_path: Path) -> None:
    """At lengths that need no filling up: positions of an encoder start with the row, those of a
    language model with its first token.
    """
    task, config = CASES[name]
    model = saved(task, config, 0, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    for length in (4, 12, 36):
        tokens, padding_mask = batch(length, 0)
        tokens, padding_mask = tokens.flip(1), padding_mask.flip(1)
        positions = {}
        if name == "language model":
            positions["position_ids"] = (padding_mask.long().cumsum(1) - 1).clamp_min(0)
        assert_close(
            our_outputs(ours, tokens, padding_mask),
            wanted(model, tokens, padding_mask, **positions),
            padding_mask,
        )


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("chunk", [2, 3])
def test_buckets_that_the_length_decides(chunk: int, length: int, tmp_path: Path) -> None:
    """As transformers does for the first input of a model; above the limit by two hashes."""
    config = {**SMALL, "num_buckets": None, "num_hashes": 2, "lsh_attn_chunk_length": chunk}
    model = saved("Model", config, 0, tmp_path)
    ours, opened = folders.open_model(tmp_path)
    assert folders.describe(opened.spec)["num_buckets"] is None
    tokens, padding_mask = batch(length, 0)
    assert_close(
        our_outputs(ours, tokens, padding_mask), wanted(model, tokens, padding_mask), padding_mask
    )
    chosen = model.config.num_buckets
    assert chosen is None or isinstance(chosen, list) == (
        math.prod(chosen if isinstance(chosen, list) else [chosen]) > 8
    )


def test_every_hash_is_that_of_the_seed(tmp_path: Path) -> None:
    tokens, padding_mask = batch(36, 0)
    model = saved("Model", {**SMALL, "hash_seed": 8}, 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    results = []
    for seed in (8, 9, None, 0):
        (tmp_path / "config.json").write_text(json.dumps({**config, "hash_seed": seed}))
        ours, _ = folders.open_model(tmp_path)
        results.append(our_outputs(ours, tokens, None))
    assert_close(results[0], wanted(model, tokens, None), torch.ones_like(padding_mask))
    assert (results[0] - results[1]).abs().max() > 0.01
    assert torch.equal(results[2], results[3])


# ------------------------------------------------------------------ language models


def test_greedy_generation_gives_the_same_tokens(tmp_path: Path) -> None:
    """Against transformers one by one, which reads the whole text anew, too: its cache gives
    something else.
    """
    model = saved("ModelWithLMHead", {**CAUSAL, "num_hashes": 2}, 5, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    chance = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 61, (n,), generator=chance).tolist() for n in (1, 4, 7, 15, 4)]
    ends, limit = SpecialTokens(pad=0, start=None, end=2), Limit.fixed(12)
    greedy = decode(ours, prompts, ends, DecodingSettings(Greedy(), limit))  # type: ignore[arg-type]
    for prompt, best in zip(prompts, greedy, strict=True):
        sequence = torch.tensor([prompt])
        while sequence.shape[1] < len(prompt) + 12 and sequence[0, -1] != 2:
            scores = wanted(model, sequence, None)[:, -1]
            sequence = torch.cat([sequence, scores.argmax(dim=-1)[:, None]], dim=1)
        assert list(best[0].tokens) == [
            token for token in sequence[0, len(prompt) :].tolist() if token != 2
        ]
    wide = decode(ours, prompts, ends, DecodingSettings(BeamSearch(3), limit))  # type: ignore[arg-type]
    alone = [decode(ours, [p], ends, DecodingSettings(BeamSearch(3), limit))[0] for p in prompts]  # type: ignore[arg-type]
    assert [h[0].tokens for h in wide] == [h[0].tokens for h in alone]


def test_texts_are_scored_and_written(tmp_path: Path) -> None:
    model = saved("ModelWithLMHead", CAUSAL, 0, tmp_path)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    loaded: Any = regard.load(str(tmp_path))
    tokens = batch(29, 0)[0][0]
    text = " ".join(f"w{i}" for i in tokens)
    scores = wanted(model, tokens[None, :-1], None)[0].log_softmax(-1)
    expected = -scores.gather(1, tokens[1:, None]).sum().item()
    total, count = loaded.nll(text)
    assert count == 28
    assert total == pytest.approx(expected, rel=1e-5)
    assert loaded.perplexity(text) == pytest.approx(math.exp(expected / 28), rel=1e-5)
    assert loaded.positions == 48
    assert len(loaded.generate(text, max_new_tokens=3).split()) <= 3
    with pytest.raises(DataError, match="48"):
        loaded.model(torch.ones(1, 49, dtype=torch.long))


# -------------------------------------------------------------- other files, and what is refused


def test_old_files_hold_more(tmp_path: Path) -> None:
    saved("ModelWithLMHead", CAUSAL, 0, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    documents = "reformer.encoder.layers.{}.attention.self_attention.{}"
    for i, names in (
        (0, ("mask_value_float16", "mask_value_float32")),
        (1, ("self_mask_value_float32",)),
    ):
        tensors |= {documents.format(i, name): torch.tensor(-1e4) for name in names}
    tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    left = {
        "sinusoidal_pos_embds": False,
        "intermediate_size": 3072,
        "num_chunks_before": 1,
        "num_chunks_after": 0,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, **left}))
    ours, _ = folders.open_model(tmp_path)
    assert torch.equal(ours.head.kept, tensors["lm_head.bias"])  # type: ignore[union-attr, arg-type]
    save_file(
        {**tensors, "lm_head.decoder.bias": tensors["lm_head.bias"] + 1},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelError, match="differ"):
        folders.open_model(tmp_path)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    saved("ModelWithLMHead", CAUSAL, 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"attn_layers": ["local", "global"]}, "attn_layers"),
        ({"attn_layers": []}, "attn_layers"),
        ({"attn_layers": ["lsh", "local"]}, "query"),
        ({"attn_layers": ["local", "lsh", "lsh"]}, "layers.2"),
        ({"num_buckets": 5}, "even"),
        ({"num_buckets": [4, "4"]}, "num_buckets"),
        ({"num_buckets": []}, "num_buckets"),
        ({"lsh_num_chunks_before": -1}, "lsh_num_chunks_before"),
        ({"hash_seed": "x"}, "hash_seed"),
        ({"axial_pos_shape": [6, 8, 2]}, "one width for each axis"),
        ({"axial_pos_embds_dim": [18, 19]}, "add up"),
        ({"axial_pos_embds": False}, "position_embeddings"),
        ({"is_decoder": False}, "mask of a decoder must be causal"),
        ({"feed_forward_size": 51}, "shape"),
        ({"hidden_act": "mish"}, "mish"),
        ({"architectures": ["ReformerForTokenClassification"]}, "architecture"),
        ({"chunk_length": 3}, "chunk_length"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    for changed in (
        {name: tensor for name, tensor in tensors.items() if name != "lm_head.bias"},
        {
            **tensors,
            "reformer.encoder.layers.0.attention.self_attention.query_key.weight": torch.zeros(
                21, 36
            ),
        },
        {**tensors, "lm_head.decoder.weight": torch.zeros(61, 36)},
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ModelError):
            folders.open_model(tmp_path)
