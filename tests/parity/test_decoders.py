"""Decoder families against transformers: tiny random models, odd sizes, padding in front, three seeds, both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.builder import trainable
from regard.builder.parameter_count import parameter_count
from regard.families import folder as folders
from regard.system import disk
from regard.system.errors import ModelError
from seeds import SEEDS
from zoo import perturb

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
LONG = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8, "rope_theta": 500.0,
}  # fmt: skip
NEOX = {
    "vocab_size": 61, "hidden_size": 40, "intermediate_size": 50, "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "max_position_embeddings": 64,
}  # fmt: skip
ENCODER = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 3,
    "num_attention_heads": 6, "max_position_embeddings": 64, "type_vocab_size": 3,
}  # fmt: skip
CASES: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama, biases, tied, banded": lambda: transformers.LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=LONG
    ),
    "llama, all heads, linear": lambda: transformers.LlamaConfig(
        **{**SMALL, "num_key_value_heads": 6}, rope_parameters={"rope_type": "linear",
        "factor": 2.0, "rope_theta": 1e4}
    ),
    "mistral, window": lambda: transformers.MistralConfig(**SMALL, sliding_window=4),
    "mistral, wide heads": lambda: transformers.MistralConfig(**SMALL, sliding_window=None,
    head_dim=10),
    "mixtral": lambda: transformers.MixtralConfig(**{**SMALL, "intermediate_size": 48},
    num_local_experts=4, num_experts_per_tok=2),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "gemma": lambda: transformers.GemmaConfig(**SMALL, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(
        **SMALL, head_dim=8, sliding_window=4, query_pre_attn_scalar=5,
        attn_logit_softcapping=3.0, final_logit_softcapping=2.0,
    ),
    "gemma2, untied, no caps": lambda: transformers.Gemma2Config(
        **SMALL, head_dim=6, sliding_window=3, tie_word_embeddings=False, attention_bias=True,
        attn_logit_softcapping=None, final_logit_softcapping=None,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **{**SMALL, "num_hidden_layers": 7}, head_dim=8, sliding_window=4, query_pre_attn_scalar=7,
    ),
    "gemma3, stretched, capped": lambda: transformers.Gemma3TextConfig(
        **SMALL, head_dim=10, sliding_window=3, final_logit_softcapping=2.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e3},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    "gpt-oss": lambda: transformers.GptOssConfig(
        **{**SMALL, "intermediate_size": 52}, head_dim=8, sliding_window=4, num_local_experts=5, num_experts_per_tok=3,
    ),
    "gpt-oss, no bias, tight limit": lambda: transformers.GptOssConfig(
        **{**SMALL, "intermediate_size": 52}, head_dim=10, sliding_window=3, num_local_experts=4, num_experts_per_tok=2,
        attention_bias=False, tie_word_embeddings=True, swiglu_limit=0.2,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters={
            "rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "beta_fast": 8.0,
            "original_max_position_embeddings": 16, "attention_factor": 1.3,
        },
    ),
    "bert": lambda: transformers.BertConfig(**ENCODER, is_decoder=True),
    "electra": lambda: transformers.ElectraConfig(**ENCODER, is_decoder=True, embedding_size=20),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=61, n_positions=40, n_embd=36, n_layer=3,
    n_head=6, pad_token_id=0),
    "gpt2, untied": lambda: transformers.GPT2Config(
        vocab_size=61, n_positions=40, n_embd=36, n_layer=2, n_head=4, n_inner=50,
        tie_word_embeddings=False,
        activation_function="gelu",
    ),
    "gpt": lambda: transformers.OpenAIGPTConfig(vocab_size=61, n_positions=40, n_embd=36,
    n_layer=3, n_head=6),
    "gpt, untied": lambda: transformers.OpenAIGPTConfig(
        vocab_size=61, n_positions=40, n_embd=36, n_layer=2, n_head=4, tie_word_embeddings=False,
        afn="swish",
        layer_norm_epsilon=1e-3,
    ),
    "neox": lambda: transformers.GPTNeoXConfig(**NEOX),
    "neox, in sequence, tied": lambda: transformers.GPTNeoXConfig(
        **NEOX, use_parallel_residual=False, tie_word_embeddings=True, attention_bias=False,
        hidden_act="gelu_fast",
        rotary_pct=0.7, rotary_emb_base=500.0,
    ),
    "neox, stretched": lambda: transformers.GPTNeoXConfig(
        **NEOX, layer_norm_eps=1e-3, rope_parameters={
            "rope_type": "linear", "factor": 3.0, "rope_theta": 1e3, "partial_rotary_factor": 1.0,
        },
    ),
}  # fmt: skip


def theirs(name: str, seed: int, out: Path) -> Any:
    torch.manual_seed(seed)
    config = CASES[name]()
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    perturb(model)
    model.save_pretrained(out)
    return model


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(1, 61, (3, 11)), torch.arange(11) >= torch.tensor([0, 3, 6])[:, None]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_open_run_and_write_back(name: str, seed: int, tmp_path: Path) -> None:
    model = theirs(name, seed, tmp_path / "theirs")
    ours, opened = folders.open_model(tmp_path / "theirs")
    assert trainable(ours) == parameter_count(opened.spec)
    tokens, padding_mask = inputs()
    with torch.inference_mode():
        positions = (padding_mask.long().cumsum(1) - 1).clamp_min(0)
        wanted = model(
            input_ids=tokens, attention_mask=padding_mask.long(), position_ids=positions
        ).logits
        result = ours.head(ours(tokens, padding_mask)[0])  # type: ignore[misc]
    tolerance = (2e-5 if name == "gemma" else 1e-5) * max(
        1.0, wanted[padding_mask].abs().mean().item()
    )
    assert (result - wanted)[padding_mask].abs().max().item() <= tolerance

    back = tmp_path / "ours"
    back.mkdir()
    disk.write_json(back / "config.json", folders.describe(opened.spec, positions=opened.positions))
    folders.write_weights(back / "model.safetensors", ours, opened.spec, opened.positions)
    before, after = (
        load_file(place / "model.safetensors") for place in (tmp_path / "theirs", back)
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        back, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        same = again(
            input_ids=tokens, attention_mask=padding_mask.long(), position_ids=positions
        ).logits
    torch.testing.assert_close(same[padding_mask], wanted[padding_mask], rtol=0, atol=1e-6)


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    import json

    theirs("llama", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, word in (
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "linear"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"hidden_act": "mish"}, "mish"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_hidden_layers": 2}, "model.layers.2"),
        ({"intermediate_size": 51}, "shape"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_rotary_positions_in_old_and_new_words() -> None:
    from regard.families.decoders.llama import LLAMA

    for kind, options in (
        ("linear", {"factor": 2}),
        ("llama3", {k: v for k, v in LONG.items() if "rope" not in k}),
    ):
        new = LLAMA.to_spec(
            {**SMALL, "rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **options}}
        )
        for word in ("type", "rope_type"):
            assert (
                LLAMA.to_spec(
                    {**SMALL, "rope_theta": 500.0, "rope_scaling": {word: kind, **options}}
                )
                == new
            )
        assert LLAMA.to_spec(LLAMA.to_config(new, 64)) == new


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "mistral, window", "gemma", "gemma2", "gemma3", "gpt-oss", "electra"]
)
def test_greedy_generation_gives_the_same_tokens(name: str, tmp_path: Path) -> None:
    """Prompts of several lengths in one batch, against transformers one by one."""
    from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
    from regard.decode.strategy import BeamSearch, Greedy, Limit

    model = theirs(name, 5, tmp_path)
    ours, _ = folders.open_model(tmp_path)
    chance = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 61, (n,), generator=chance).tolist() for n in (1, 4, 7, 4)]
    ends, limit = SpecialTokens(pad=0, start=None, end=2), Limit.fixed(12)
    greedy = decode(ours, prompts, ends, DecodingSettings(Greedy(), limit))  # type: ignore[arg-type]
    for prompt, result in zip(prompts, greedy, strict=True):
        wanted = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=2,
            pad_token_id=0,
        )
        new = wanted[0, len(prompt) :].tolist()
        assert list(result[0].tokens) == (new[: new.index(2)] if 2 in new else new)
    one = decode(ours, prompts, ends, DecodingSettings(BeamSearch(1), limit))  # type: ignore[arg-type]
    assert [h[0].tokens for h in one] == [h[0].tokens for h in greedy]
    wide = decode(ours, prompts, ends, DecodingSettings(BeamSearch(3), limit))  # type: ignore[arg-type]
    alone = [decode(ours, [p], ends, DecodingSettings(BeamSearch(3), limit))[0] for p in prompts]  # type: ignore[arg-type]
    assert [h[0].tokens for h in wide] == [h[0].tokens for h in alone]


def test_gpt2_as_its_authors_released_it(tmp_path: Path) -> None:
    """The first files have no prefix, and masks among the weights."""
    theirs("gpt2", 0, tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in before.items()}
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 40, 40).tril() for i in range(3)}
    save_file(old, tmp_path / "model.safetensors")
    _, opened = folders.open_model(tmp_path)
    assert torch.equal(opened.weights["tokens.table.weight"], before["transformer.wte.weight"])
    old["h.1.attn.bias"][0, 0, 3, 5] = 1.0
    save_file(old, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="other values than config"):
        folders.open_model(tmp_path)


def test_neox_as_its_authors_released_it(tmp_path: Path) -> None:
    """Pythia's files have masks and frequencies among the weights, and their config other words for the rotation."""
    import json

    theirs("neox", 0, tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    for i in range(3):
        old_buffers = {
            "bias": torch.ones(1, 1, 64, 64).tril().bool(),
            "masked_bias": torch.tensor(-1e9),
            "rotary_emb.inv_freq": torch.tensor([1.0]),
        }
        before |= {
            f"gpt_neox.layers.{i}.attention.{name}": tensor for name, tensor in old_buffers.items()
        }
    save_file(before, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    new = config.pop("rope_parameters")
    assert new == {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"}
    _, with_new = folders.open_model(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "rotary_pct": 0.25, "rotary_emb_base": 10000})
    )
    _, with_old = folders.open_model(tmp_path)
    assert with_new.spec == with_old.spec
    for change, word in (
        ({"hidden_act": "mish"}, "mish"),
        ({"rotary_pct": 0.5}, "inv_freq"),
        ({"use_parallel_residual": 1}, "use_parallel_residual"),
        ({"layer_types": ["full"]}, "layer_types"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=word):
            folders.open_model(tmp_path)


def test_gpt_as_its_authors_released_it(tmp_path: Path) -> None:
    theirs("gpt", 0, tmp_path)
    before = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in before.items()}
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 40, 40).tril() for i in range(3)} | {
        "position_ids": torch.arange(40)
    }
    save_file(old, tmp_path / "model.safetensors")
    _, opened = folders.open_model(tmp_path)
    assert torch.equal(
        opened.weights["tokens.table.weight"], before["transformer.tokens_embed.weight"]
    )


def test_a_window_that_is_not_said(tmp_path: Path) -> None:
    """Absent it is 4096, as in transformers; null says that there is none. Qwen2 says one that it does not use."""
    from regard import spec as kinds
    from regard.families.decoders.mistral import MISTRAL
    from regard.families.decoders.qwen2 import QWEN2

    for window_options, window in (
        ({}, 4096),
        ({"sliding_window": None}, None),
        ({"sliding_window": 7}, 7),
    ):
        assert transformers.MistralConfig(**SMALL, **window_options).sliding_window == window
        assert MISTRAL.to_spec({**SMALL, **window_options}).stack.block.pattern == kinds.CausalMask(
            window
        )
    assert (
        QWEN2.to_spec({**SMALL, "sliding_window": 7, "max_window_layers": 1}).stack.block.pattern
        == kinds.CausalMask()
    )
    with pytest.raises(ModelError, match="use_sliding_window"):
        QWEN2.to_spec({**SMALL, "sliding_window": 7, "use_sliding_window": True})
