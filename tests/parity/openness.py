"""The classes of transformers that `regard.load` should open, with the small configurations of
that library's own tests: random weights, the same inputs, every tensor compared.

`python tests/parity/openness.py [FAMILY ...] [--seed N]` prints the table: a class, and whether its
outputs are equal, why it is refused, or which output differs.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import regard
from regard.system.errors import RegardError

Inputs = dict[str, Any]
BATCH = 5
LENGTH = 7
TOLERANCE = 2e-5  # of outputs of size 1

# ------------------------------------------------------------------ inputs


def ids(size: int, *shape: int) -> Tensor:
    return torch.randint(size, shape or (BATCH, LENGTH))


def visible(*shape: int) -> Tensor:
    """A mask that hides positions anywhere but at the start, whatever tokens stand there."""
    mask = ids(2, *shape)
    mask[:, 0] = 1
    return mask


def text(config: Any) -> Inputs:
    return {"input_ids": ids(config.vocab_size), "attention_mask": visible()}


def segments(config: Any) -> Inputs:
    return {**text(config), "token_type_ids": ids(max(1, config.type_vocab_size))}


def of_longformer(config: Any) -> Inputs:
    """With the separators by which it finds the question."""
    inputs = segments(config)
    inputs["input_ids"][:, -3:] = config.sep_token_id
    return inputs


def scattered(config: Any) -> Inputs:
    """With masks that may hide the first token, or all of them (DeBERTa)."""
    return {**segments(config), "attention_mask": ids(2)}


def beginning(config: Any) -> Inputs:
    """With the triangular mask of causal models' tests: a row more is seen each time."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long).tril()
    return {"input_ids": ids(config.vocab_size), "attention_mask": mask}


def of_gpt2(config: Any) -> Inputs:
    return {"input_ids": ids(config.vocab_size), "token_type_ids": ids(16)}


def pair(config: Any) -> Inputs:
    source = ids(config.vocab_size).clamp(min=3)
    source[:, -1] = config.eos_token_id
    mask = source.ne(config.pad_token_id).long()
    target = ids(config.vocab_size).clamp(min=3)
    target[:, -1] = config.eos_token_id
    return {
        "input_ids": source,
        "attention_mask": mask,
        "decoder_input_ids": target,
        "decoder_attention_mask": mask,
    }


def of_t5(config: Any) -> Inputs:
    source = ids(config.vocab_size).clamp(min=2)
    source[:, -1] = config.eos_token_id
    return {
        "input_ids": source,
        "attention_mask": visible(),
        "decoder_input_ids": ids(config.vocab_size, BATCH, 9),
        "decoder_attention_mask": visible(BATCH, 9),
    }


def image(config: Any) -> Inputs:
    config = getattr(config, "vision_config", config)
    side = config.image_size
    return {"pixel_values": torch.rand(BATCH, config.num_channels, side, side)}


def text_and_image(config: Any) -> Inputs:
    return {**text(config.text_config), **image(config)}


def sound(config: Any) -> Inputs:
    return {"input_values": torch.rand(BATCH, 1024), "attention_mask": visible(BATCH, 1024)}


def speech(config: Any) -> Inputs:
    frames = 2 * config.max_source_positions
    return {
        "input_features": torch.rand(BATCH, config.num_mel_bins, frames),
        "decoder_input_ids": ids(config.vocab_size).clamp(min=2),
        "decoder_attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
    }


def series(config: Any) -> Inputs:
    past = config.context_length + max(config.lags_sequence)
    return {
        "past_values": torch.rand(BATCH, past),
        "past_time_features": torch.rand(BATCH, past, config.num_time_features),
        "past_observed_mask": torch.rand(BATCH, past) > 0.5,
        "static_categorical_features": ids(config.cardinality[0], BATCH, 1),
        "static_real_features": torch.rand(BATCH, 1),
        "future_time_features": torch.rand(
            BATCH, config.prediction_length, config.num_time_features
        ),
        "future_values": torch.rand(BATCH, config.prediction_length),
    }


def windows(config: Any) -> Inputs:
    return {
        "past_values": torch.rand(BATCH, config.context_length, config.num_input_channels),
        "future_values": torch.rand(BATCH, config.prediction_length, config.num_input_channels),
    }


def episodes(config: Any) -> Inputs:
    return {
        "states": torch.rand(BATCH, LENGTH, config.state_dim),
        "actions": torch.rand(BATCH, LENGTH, config.act_dim),
        "rewards": torch.rand(BATCH, LENGTH, 1),
        "returns_to_go": torch.rand(BATCH, LENGTH, 1),
        "timesteps": ids(1000),
        "attention_mask": visible(),
    }


# ------------------------------------------------------------------ families

DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
ENCODER = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 16,
    "initializer_range": 0.02,
    **DROPOUT,
}
# Of causal models: what their tests pass where the class of the configuration takes it.
CAUSAL = {
    **ENCODER,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "is_decoder": False,
}
# Experts are multiplied in groups, whose rows begin at multiples of 16 bytes.
EXPERTS = {**CAUSAL, "intermediate_size": 40, "num_experts_per_tok": 2, "num_local_experts": 8}
FAIRSEQ = {
    "vocab_size": 99,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 4,
    "decoder_ffn_dim": 4,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "max_position_embeddings": 50,
    "eos_token_id": 2,
    "bos_token_id": 0,
    "pad_token_id": 1,
}
T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_ff": 37,
    "d_kv": 8,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "dropout_rate": 0.1,
    "initializer_factor": 0.002,
    "classifier_dropout": 0.0,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
VISION = {
    **{key: ENCODER[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
    "intermediate_size": 37,
    "image_size": 30,
    "patch_size": 2,
    "num_channels": 3,
    "initializer_range": 0.02,
}
CONTRASTIVE_TEXT = {
    **{key: ENCODER[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers")},
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 512,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
CONTRASTIVE_IMAGE = {**VISION, "dropout": 0.1, "attention_dropout": 0.1}
SOUND = {
    "hidden_size": 16,
    "feat_extract_norm": "group",
    "feat_extract_dropout": 0.0,
    "feat_extract_activation": "gelu",
    "conv_dim": (32, 32, 32),
    "conv_stride": (4, 4, 4),
    "conv_kernel": (8, 8, 8),
    "conv_bias": False,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.1,
    "intermediate_size": 20,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "initializer_range": 0.02,
    "vocab_size": 32,
    "do_stable_layer_norm": False,
}
STABLE_SOUND = {**SOUND, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
WAV2VEC2_HEADS = {
    "mask_time_prob": 0.5,
    "mask_time_length": 2,
    "num_adapter_layers": 1,
    "adapter_stride": 2,
    "tdnn_dim": (32, 32),
    "tdnn_kernel": (5, 3),
    "tdnn_dilation": (1, 2),
    "xvector_output_dim": 32,
}
REFORMER: dict[str, Any] = {
    "vocab_size": 32,
    "attention_head_size": 16,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "axial_pos_shape": [4, 8],
    "axial_pos_embds_dim": [16, 16],
    "axial_norm_std": 1.0,
    "feed_forward_size": 32,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "local_attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "hash_seed": 0,
}
LOCAL = {
    "attn_layers": ["local"] * 4,
    "local_attn_chunk_length": 4,
    "local_num_chunks_before": 1,
    "local_num_chunks_after": 0,
    "chunk_size_lm_head": 0,
    "chunk_size_feed_forward": 0,
    "is_decoder": True,
}
LSH = {
    "attn_layers": ["lsh"] * 4,
    "lsh_attention_probs_dropout_prob": 0.1,
    "lsh_attn_chunk_length": 4,
    "lsh_num_chunks_before": 2,
    "lsh_num_chunks_after": 3,
    "num_buckets": 2,
    "num_hashes": 2,
    "is_decoder": False,
    "axial_pos_embds": True,
}


def reformer_text(config: Any) -> Inputs:
    mask = visible(BATCH, 32)
    return {"input_ids": ids(config.vocab_size, BATCH, 32), "attention_mask": mask}


@dataclass(frozen=True)
class Family:
    """The classes of a family, by what follows its prefix, and how they are configured."""

    prefix: str
    heads: str
    config: Any = field(default_factory=lambda: ENCODER)
    inputs: Callable[[Any], Inputs] = text


ENCODER_HEADS = (
    "Model ForMaskedLM ForSequenceClassification ForTokenClassification ForQuestionAnswering"
)
DECODER_HEADS = (
    "Model ForCausalLM ForSequenceClassification ForTokenClassification ForQuestionAnswering"
)
BART_HEADS = (
    "Model ForConditionalGeneration ForSequenceClassification ForQuestionAnswering Decoder "
    "ForCausalLM"
)
T5_HEADS = (
    "Model ForConditionalGeneration EncoderModel ForSequenceClassification "
    "ForTokenClassification ForQuestionAnswering"
)
DEBERTA = {
    **ENCODER,
    "relative_attention": False,
    "position_biased_input": True,
    "pos_att_type": "None",
}
CONTRASTIVE = {"text_config": CONTRASTIVE_TEXT, "vision_config": CONTRASTIVE_IMAGE}

FAMILIES: dict[str, Family] = {
    "albert": Family(
        "Albert",
        f"{ENCODER_HEADS} ForPreTraining ForMultipleChoice",
        {**ENCODER, "embedding_size": 16, "num_hidden_groups": 2, "inner_group_num": 1},
        segments,
    ),
    "bart": Family("Bart", BART_HEADS, FAIRSEQ, pair),
    "bert": Family(
        "Bert",
        f"{ENCODER_HEADS} ForPreTraining ForNextSentencePrediction LMHeadModel ForMultipleChoice",
        {**ENCODER, "is_decoder": False},
        segments,
    ),
    "big_bird": Family(
        "BigBird",
        f"{ENCODER_HEADS} ForPreTraining ForCausalLM ForMultipleChoice",
        {
            **ENCODER,
            "hidden_act": "gelu_new",
            "attention_type": "original_full",
            "use_bias": True,
            "rescale_embeddings": False,
            "block_size": 8,
            "num_random_blocks": 3,
        },
        segments,
    ),
    "clip": Family("CLIP", "Model", CONTRASTIVE, text_and_image),
    "clip (text)": Family("CLIPText", "Model ModelWithProjection", CONTRASTIVE_TEXT),
    "clip (vision)": Family("CLIPVision", "Model ModelWithProjection", CONTRASTIVE_IMAGE, image),
    "clip (images)": Family("CLIP", "ForImageClassification", CONTRASTIVE, image),
    "deberta": Family("Deberta", ENCODER_HEADS, DEBERTA, scattered),
    "deberta_v2": Family("DebertaV2", f"{ENCODER_HEADS} ForMultipleChoice", DEBERTA, scattered),
    "deit": Family(
        "DeiT",
        "Model ForMaskedImageModeling ForImageClassification ForImageClassificationWithTeacher",
        {**VISION, **DROPOUT, "encoder_stride": 2},
        image,
    ),
    "dinov2": Family(
        "Dinov2", "Model ForImageClassification Backbone", {**VISION, **DROPOUT}, image
    ),
    "distilbert": Family(
        "DistilBert",
        f"{ENCODER_HEADS} ForMultipleChoice",
        {
            "vocab_size": 99,
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 37,
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
    ),
    "electra": Family(
        "Electra",
        f"{ENCODER_HEADS} ForPreTraining ForCausalLM ForMultipleChoice",
        ENCODER,
        segments,
    ),
    "gemma": Family(
        "Gemma",
        "Model ForCausalLM ForSequenceClassification ForTokenClassification",
        CAUSAL,
        beginning,
    ),
    "gemma2": Family(
        "Gemma2",
        "Model ForCausalLM ForSequenceClassification ForTokenClassification",
        CAUSAL,
        beginning,
    ),
    "gemma3_text": Family(
        "Gemma3", "TextModel ForCausalLM TextForSequenceClassification", CAUSAL, beginning
    ),
    "gpt2": Family(
        "GPT2",
        "Model LMHeadModel DoubleHeadsModel ForQuestionAnswering ForSequenceClassification "
        "ForTokenClassification",
        CAUSAL,
        of_gpt2,
    ),
    "gpt_neox": Family("GPTNeoX", DECODER_HEADS, CAUSAL, beginning),
    "gpt_oss": Family(
        "GptOss",
        "Model ForCausalLM ForSequenceClassification ForTokenClassification",
        EXPERTS,
        beginning,
    ),
    "hubert": Family("Hubert", "Model ForCTC ForSequenceClassification", SOUND, sound),
    "hubert (stable)": Family(
        "Hubert", "Model ForCTC ForSequenceClassification", STABLE_SOUND, sound
    ),
    "llama": Family("Llama", DECODER_HEADS, CAUSAL, beginning),
    "longformer": Family(
        "Longformer",
        f"{ENCODER_HEADS} ForMultipleChoice",
        {**ENCODER, "attention_window": 4},
        of_longformer,
    ),
    "marian": Family(
        "Marian",
        "Model MTModel Decoder ForCausalLM",
        {**FAIRSEQ, "decoder_start_token_id": 3},
        pair,
    ),
    "mbart": Family("MBart", BART_HEADS, FAIRSEQ, pair),
    "mistral": Family("Mistral", DECODER_HEADS, CAUSAL, beginning),
    "mixtral": Family("Mixtral", DECODER_HEADS, EXPERTS, beginning),
    "mpnet": Family("MPNet", f"{ENCODER_HEADS} ForMultipleChoice"),
    "mt5": Family("MT5", T5_HEADS, T5, of_t5),
    "openai": Family(
        "OpenAIGPT",
        "Model LMHeadModel DoubleHeadsModel ForSequenceClassification",
        {
            "vocab_size": 99,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 512,
            "pad_token_id": 98,
        },
        of_gpt2,
    ),
    "decision_transformer": Family(
        "DecisionTransformer",
        "Model",
        {"act_dim": 6, "hidden_size": 23, "max_length": 11},
        episodes,
    ),
    "patchtst": Family(
        "PatchTST",
        "Model ForPrediction ForPretraining ForClassification ForRegression",
        {
            "prediction_length": 7,
            "context_length": 14,
            "patch_length": 5,
            "patch_stride": 5,
            "num_input_channels": 1,
            "d_model": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 4,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "activation_function": "gelu",
            "num_targets": 2,
            "num_output_channels": 2,
        },
        windows,
    ),
    "pegasus": Family(
        "Pegasus", "Model ForConditionalGeneration Decoder ForCausalLM", FAIRSEQ, pair
    ),
    "qwen2": Family("Qwen2", DECODER_HEADS, CAUSAL, beginning),
    "reformer (local)": Family(
        "Reformer",
        "Model ModelWithLMHead ForSequenceClassification ForQuestionAnswering",
        {**REFORMER, **LOCAL},
        reformer_text,
    ),
    "reformer (LSH)": Family(
        "Reformer",
        "Model ForMaskedLM ForSequenceClassification ForQuestionAnswering",
        {**REFORMER, **LSH},
        reformer_text,
    ),
    "roberta": Family(
        "Roberta", f"{ENCODER_HEADS} ForCausalLM ForMultipleChoice", ENCODER, segments
    ),
    "esm": Family(
        "Esm",
        "Model ForMaskedLM ForSequenceClassification ForTokenClassification",
        {**ENCODER, "vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
        text,
    ),
    "siglip": Family("Siglip", "Model", CONTRASTIVE, text_and_image),
    "siglip (text)": Family("SiglipText", "Model", CONTRASTIVE_TEXT),
    "siglip (vision)": Family("SiglipVision", "Model", CONTRASTIVE_IMAGE, image),
    "siglip (images)": Family("Siglip", "ForImageClassification", CONTRASTIVE, image),
    "swin": Family(
        "Swin",
        "Model ForMaskedImageModeling ForImageClassification Backbone",
        {
            "image_size": 32,
            "patch_size": 2,
            "num_channels": 3,
            "embed_dim": 16,
            "depths": [1, 2, 1],
            "num_heads": [2, 2, 4],
            "window_size": 2,
            "mlp_ratio": 2.0,
            "qkv_bias": True,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "drop_path_rate": 0.1,
            "hidden_act": "gelu",
            "use_absolute_embeddings": False,
            "layer_norm_eps": 1e-5,
            "encoder_stride": 8,
            "out_features": ["stage1", "stage2"],
        },
        image,
    ),
    "t5": Family("T5", T5_HEADS, T5, of_t5),
    "time_series_transformer": Family(
        "TimeSeriesTransformer",
        "Model ForPrediction",
        {
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 4,
            "decoder_ffn_dim": 4,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "prediction_length": 7,
            "context_length": 14,
            "lags_sequence": [1, 2, 3, 4, 5],
            "num_time_features": 4,
            "num_static_real_features": 1,
            "num_static_categorical_features": 1,
            "cardinality": [19],
            "embedding_dimension": [5],
            "scaling": "std",
        },
        series,
    ),
    "vit": Family(
        "ViT",
        "Model ForMaskedImageModeling ForImageClassification",
        {**VISION, **DROPOUT, "encoder_stride": 2},
        image,
    ),
    "vit_mae": Family(
        "ViTMAE",
        "Model ForPreTraining",
        {
            **VISION,
            **DROPOUT,
            "decoder_hidden_size": 32,
            "decoder_num_attention_heads": 2,
            "decoder_num_hidden_layers": 2,
            "decoder_intermediate_size": 37,
            "mask_ratio": 0.6,
        },
        image,
    ),
    "wav2vec2": Family(
        "Wav2Vec2",
        "Model ForCTC ForSequenceClassification ForPreTraining ForAudioFrameClassification "
        "ForXVector",
        {**SOUND, **WAV2VEC2_HEADS},
        sound,
    ),
    "wav2vec2 (stable)": Family(
        "Wav2Vec2",
        "Model ForCTC ForSequenceClassification ForPreTraining",
        {**STABLE_SOUND, **WAV2VEC2_HEADS},
        sound,
    ),
    "whisper": Family(
        "Whisper",
        "Model ForConditionalGeneration ForAudioClassification Decoder ForCausalLM",
        {
            **{key: value for key, value in FAIRSEQ.items() if key != "max_position_embeddings"},
            "num_mel_bins": 80,
            "max_source_positions": 30,
            "max_target_positions": 40,
            "decoder_start_token_id": 85,
            "num_conv_layers": 1,
            "suppress_tokens": None,
        },
        speech,
    ),
}
CONFIGS = {
    "CLIPText": "CLIPTextConfig",
    "CLIPVision": "CLIPVisionConfig",
    "Gemma3": "Gemma3TextConfig",
    "SiglipText": "SiglipTextConfig",
    "SiglipVision": "SiglipVisionConfig",
}

# ------------------------------------------------------------------ one class


def cases(wanted: list[str] | None = None) -> Iterator[tuple[str, str]]:
    """All families and the names of their classes."""
    for family, one in FAMILIES.items():
        if not wanted or family.partition(" ")[0] in wanted:
            yield from ((family, one.prefix + head) for head in one.heads.split())


def model_class(name: str) -> Any:
    if hasattr(transformers, name):
        return getattr(transformers, name)
    family = name.removesuffix("Decoder").lower()
    module = getattr(transformers.models, family)
    return getattr(getattr(module, f"modeling_{family}"), name)


def made(family: str, name: str) -> tuple[Any, Inputs]:
    """A model of a class with random weights, and inputs of a call."""
    one = FAMILIES[family]
    config_class = getattr(transformers, CONFIGS.get(one.prefix, f"{one.prefix}Config"))
    accepted = inspect.signature(config_class.__init__).parameters
    # As the tests of causal models do: keys that a family's configuration does not have are not
    # passed.
    known = one.config
    if "num_key_value_heads" in known:
        known = _known(config_class, accepted, known)
    config = config_class(**known)
    if "For" in name and not name.startswith("PatchTST"):
        config.num_labels = 2 if name.endswith("ForQuestionAnswering") else 3
    if name in (
        "BertLMHeadModel",
        "BigBirdForCausalLM",
        "ElectraForCausalLM",
        "RobertaForCausalLM",
    ):
        config.is_decoder = True
    if name.endswith(("Decoder", "ForCausalLM")) and one.inputs in (pair, speech):
        config.is_encoder_decoder = False
        config.is_decoder = True
    model = model_class(name)(config).eval()
    randomize(model)
    inputs = one.inputs(config)
    return model, prepared(model, name, inputs)


def _known(config_class: Any, accepted: Any, keys: dict[str, Any]) -> dict[str, Any]:
    attributes = set(config_class().to_dict()) | set(accepted) | set(config_class.attribute_map)
    return {key: value for key, value in keys.items() if key in attributes}


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Biases and norms begin as zeros and ones, which would hide that one of them is not read."""
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
        # Training does not change the row of the padding.
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0.0


def prepared(model: Any, name: str, inputs: Inputs) -> Inputs:
    """The inputs of this class: what its call takes, and for each choice where it has several."""
    if name.endswith("Decoder") or (name.endswith("ForCausalLM") and "decoder_input_ids" in inputs):
        mask = inputs["decoder_attention_mask"]
        return {"input_ids": inputs["decoder_input_ids"], "attention_mask": mask}
    if name.endswith(("ForMultipleChoice", "DoubleHeadsModel")):
        inputs = {key: value[:, None].repeat(1, 4, 1) for key, value in inputs.items()}
    if name.endswith("DoubleHeadsModel"):
        inputs["mc_token_ids"] = ids(LENGTH, BATCH, 4)
    if "decoder_input_ids" in inputs and name.endswith("ForSequenceClassification"):
        inputs["decoder_input_ids"] = inputs["input_ids"]
        inputs["decoder_attention_mask"] = inputs["attention_mask"]
    taken = inspect.signature(model.forward).parameters
    inputs = {key: value for key, value in inputs.items() if key in taken}
    if name.startswith("PatchTST") and "target_values" in taken:
        classes = name.endswith("ForClassification")
        inputs["target_values"] = ids(2, BATCH) if classes else torch.rand(BATCH, 2)
    return inputs


def tensors(output: Any) -> dict[str, Tensor]:
    """The output tensors by name; caches are none."""
    result: dict[str, Tensor] = {}
    for key, value in output.items():
        if isinstance(value, Tensor):
            result[key] = value
        elif isinstance(value, tuple) and value and all(isinstance(v, Tensor) for v in value):
            result |= {f"{key}.{i}": v for i, v in enumerate(value)}
    return result


def verdict(family: str, name: str, seed: int, folder: Path) -> str:
    """`equal`, `refused: why` or `differs: where`."""
    torch.manual_seed(seed)
    theirs, inputs = made(family, name)
    theirs.save_pretrained(folder)
    with torch.no_grad():
        torch.manual_seed(seed + 1)
        expected = tensors(theirs(**inputs))
    try:
        ours = regard.load(folder, say=lambda text: None, device="cpu")
    except RegardError as error:
        return f"refused: {error.problem}"
    try:
        with torch.no_grad():
            torch.manual_seed(seed + 1)
            result = tensors(ours(**inputs))
    except RegardError as error:
        return f"refused in the call: {error.problem}"
    problems = differences(shown(expected, inputs), shown(result, inputs))
    if problems:
        return f"differs: {'; '.join(problems)}"
    lost = lost_by_saving(ours, folder)
    return f"equal, but saved without {', '.join(lost)}" if lost else "equal"


def lost_by_saving(ours: regard.Model, folder: Path) -> list[str]:
    """What of a folder is not in the one that the model opened from it writes."""
    saved = ours.save(folder / "saved")
    before, after = (load_file(place / "model.safetensors") for place in (folder, saved))
    # transformers writes ESM under the names of its first files.
    today = {
        name: name.replace("Norm.gamma", "Norm.weight").replace("Norm.beta", "Norm.bias")
        for name in before
    }
    lost = [
        name
        for name, tensor in before.items()
        if today[name] not in after or not torch.equal(tensor, after[today[name]])
    ]
    config, again = (json.loads((place / "config.json").read_text()) for place in (folder, saved))
    return lost + sorted(config.keys() - again.keys() - {"transformers_version", "dtype"})


def shown(output: dict[str, Tensor], inputs: Inputs) -> dict[str, Tensor]:
    """What stands at positions that the mask shows, where an output has positions."""
    result = {}
    for key, value in output.items():
        name = "" if key.startswith("encoder") or "decoder_input_ids" not in inputs else "decoder_"
        mask = inputs.get(f"{name}attention_mask")
        if mask is not None and value.shape[: mask.ndim] == mask.shape:
            value = value[mask.bool()]
        result[key] = value
    return result


def differences(expected: dict[str, Tensor], result: dict[str, Tensor]) -> list[str]:
    problems = []
    for key, value in expected.items():
        if key not in result:
            problems.append(f"lacks {key}")
        elif result[key].shape != value.shape:
            problems.append(f"{key} is {list(result[key].shape)}, not {list(value.shape)}")
        elif not value.is_floating_point():
            if not torch.equal(value, result[key]):
                problems.append(f"{key} is another")
        else:
            largest = max(1.0, value.abs().max().item())
            error = (value - result[key]).abs().max().item()
            if not error <= TOLERANCE * largest:
                problems.append(f"{key} by {error:.0e}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    counts: dict[str, int] = {}
    for family, name in cases(arguments.families):
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = verdict(family, name, arguments.seed, Path(folder))
            except Exception as error:  # one row of a table, whatever goes wrong
                result = f"FAILS: {type(error).__name__}: {str(error)[:200]}"
        counts[result.partition(":")[0]] = counts.get(result.partition(":")[0], 0) + 1
        print(f"{family:24} {name:44} {result}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())), file=sys.stderr)


if __name__ == "__main__":
    main()
