"""One tiny random model of every family, as transformers writes it: what several tests open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SEQUENCES = {
    "vocab_size": 53,
    "d_model": 30,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 41,
    "decoder_ffn_dim": 37,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
}
ENCODERS = {
    "vocab_size": 61,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 40,
}
DECODERS = {
    "vocab_size": 61,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGES = {
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 31,
    "image_size": 14,
    "patch_size": 4,
    "num_channels": 2,
}
TEXTS = {
    "vocab_size": 37,
    "hidden_size": 20,
    "intermediate_size": 31,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 13,
    "bos_token_id": 35,
    "eos_token_id": 36,
    "pad_token_id": 1,
    "projection_dim": 9,
}
SIGLIP_TEXTS = {key: value for key, value in TEXTS.items() if key != "projection_dim"}
SOUND = {
    "vocab_size": 11,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 31,
    "conv_dim": [7, 9],
    "conv_stride": [3, 2],
    "conv_kernel": [5, 3],
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
}
GPT = {
    "vocab_size": 61,
    "n_positions": 40,
    "n_embd": 36,
    "n_layer": 2,
    "n_head": 6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEBERTA = {
    **ENCODERS,
    "relative_attention": True,
    "position_buckets": 6,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "max_relative_positions": -1,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "conv_kernel_size": 3,
}

# name → (architecture, config class, its options)
ZOO: dict[str, tuple[str, str, dict[str, Any]]] = {
    "marian": (
        "MarianMTModel",
        "MarianConfig",
        {
            **SEQUENCES,
            "decoder_attention_heads": 3,
            "decoder_ffn_dim": 41,
            "max_position_embeddings": 32,
            "scale_embedding": True,
            "activation_function": "swish",
        },
    ),
    "pegasus": (
        "PegasusForConditionalGeneration",
        "PegasusConfig",
        {**SEQUENCES, "max_position_embeddings": 32, "scale_embedding": True},
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**SEQUENCES, "max_position_embeddings": 32},
    ),
    "mbart": (
        "MBartForConditionalGeneration",
        "MBartConfig",
        {**SEQUENCES, "max_position_embeddings": 32},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 53,
            "d_model": 30,
            "d_kv": 7,
            "d_ff": 41,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 13,
            "decoder_start_token_id": 0,
        },
    ),
    "t5 1.1": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 53,
            "d_model": 30,
            "d_kv": 7,
            "d_ff": 41,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
    "mt5": (
        "MT5ForConditionalGeneration",
        "MT5Config",
        {
            "vocab_size": 53,
            "d_model": 30,
            "d_kv": 7,
            "d_ff": 41,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart, classes": (
        "BartForSequenceClassification",
        "BartConfig",
        {**SEQUENCES, "max_position_embeddings": 32, "num_labels": 3},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **SEQUENCES,
            "num_mel_bins": 11,
            "max_source_positions": 14,
            "max_target_positions": 17,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "decoder_start_token_id": 1,
            "begin_suppress_tokens": None,
        },
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**GPT, "pad_token_id": 0}),
    "gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT),
    "neox": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {
            "vocab_size": 61,
            "hidden_size": 40,
            "intermediate_size": 50,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "max_position_embeddings": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **DECODERS,
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
                "rope_theta": 500.0,
            },
        },
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**DECODERS, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", DECODERS),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**DECODERS, "head_dim": 8}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**DECODERS, "head_dim": 8, "sliding_window": 4},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**DECODERS, "head_dim": 8, "sliding_window": 4},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **DECODERS,
            "head_dim": 8,
            "sliding_window": 4,
            "num_local_experts": 4,
            "intermediate_size": 52,  # rows of 16 bytes for transformers' grouped products
        },
    ),
    "bert": ("BertModel", "BertConfig", ENCODERS),
    "bert, all of pre-training": ("BertForPreTraining", "BertConfig", ENCODERS),
    "bert, classes": (
        "BertForSequenceClassification",
        "BertConfig",
        {
            **ENCODERS,
            "id2label": {0: "bad", 1: "fair", 2: "good"},
            "label2id": {"bad": 0, "fair": 1, "good": 2},
        },
    ),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", ENCODERS),
    "camembert": ("CamembertForTokenClassification", "CamembertConfig", ENCODERS),
    "xlm-roberta": ("XLMRobertaForQuestionAnswering", "XLMRobertaConfig", ENCODERS),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {
            "vocab_size": 61,
            "dim": 36,
            "hidden_dim": 50,
            "n_layers": 2,
            "n_heads": 6,
            "max_position_embeddings": 40,
        },
    ),
    "albert": ("AlbertForPreTraining", "AlbertConfig", {**ENCODERS, "embedding_size": 20}),
    "electra": ("ElectraForPreTraining", "ElectraConfig", {**ENCODERS, "embedding_size": 20}),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", ENCODERS),
    "esm": (
        "EsmForMaskedLM",
        "EsmConfig",
        {**ENCODERS, "position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 4},
    ),
    "deberta v1": (
        "DebertaForSequenceClassification",
        "DebertaConfig",
        {
            **ENCODERS,
            "relative_attention": True,
            "pos_att_type": "c2p|p2c",
            "position_biased_input": False,
        },
    ),
    "deberta": ("DebertaV2ForSequenceClassification", "DebertaV2Config", DEBERTA),
    "bigbird, answers": (
        "BigBirdForQuestionAnswering",
        "BigBirdConfig",
        {**ENCODERS, "block_size": 2, "num_random_blocks": 1, "sep_token_id": 7},
    ),
    "reformer": (
        "ReformerModelWithLMHead",
        "ReformerConfig",
        {
            "vocab_size": 61,
            "hidden_size": 36,
            "attention_head_size": 7,
            "num_attention_heads": 3,
            "feed_forward_size": 50,
            "attn_layers": ["local", "lsh"],
            "axial_pos_shape": [6, 8],
            "axial_pos_embds_dim": [17, 19],
            "num_buckets": 4,
            "max_position_embeddings": 48,
            "local_attn_chunk_length": 4,
            "lsh_attn_chunk_length": 6,
            "hash_seed": 3,
            "is_decoder": True,
        },
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGES),
    "deit": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", IMAGES),
    "dinov2": (
        "Dinov2ForImageClassification",
        "Dinov2Config",
        {key: value for key, value in IMAGES.items() if key != "intermediate_size"},
    ),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {
            "embed_dim": 10,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 3,
            "image_size": 23,
            "num_channels": 2,
            "num_labels": 3,
        },
    ),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {
            "embedding_size": 10,
            "hidden_sizes": [12, 20],
            "depths": [1, 2],
            "layer_type": "basic",
            "num_labels": 3,
        },
    ),
    "vit, masked": (
        "ViTForMaskedImageModeling",
        "ViTConfig",
        {**IMAGES, "image_size": 16, "encoder_stride": 4},
    ),
    "swin, masked": (
        "SwinForMaskedImageModeling",
        "SwinConfig",
        {
            "embed_dim": 10,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 3,
            "image_size": 24,
            "num_channels": 2,
            "encoder_stride": 8,
        },
    ),
    "vit-mae": (
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        {
            **IMAGES,
            "image_size": 16,
            "decoder_hidden_size": 12,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 3,
            "decoder_intermediate_size": 17,
        },
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": TEXTS, "vision_config": IMAGES, "projection_dim": 9},
    ),
    "clip, text": ("CLIPTextModelWithProjection", "CLIPTextConfig", TEXTS),
    "clip, image": (
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {**IMAGES, "projection_dim": 9},
    ),
    "siglip": (
        "SiglipModel",
        "SiglipConfig",
        {"text_config": SIGLIP_TEXTS, "vision_config": IMAGES},
    ),
    "siglip, text": ("SiglipTextModel", "SiglipTextConfig", SIGLIP_TEXTS),
    "siglip, image": ("SiglipVisionModel", "SiglipVisionConfig", IMAGES),
    "decision transformer": (
        "DecisionTransformerModel",
        "DecisionTransformerConfig",
        {"state_dim": 5, "act_dim": 3, "hidden_size": 20, "n_head": 4, "max_ep_len": 30},
    ),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", SOUND),
    "hubert": (
        "HubertForSequenceClassification",
        "HubertConfig",
        {**SOUND, "do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
    ),
    "wav2vec2, norms before": (
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        {**SOUND, "do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True},
    ),
}


def save(name: str, folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Theirs, with every number moved, so that biases and norms matter; written to `folder`."""
    import transformers

    architecture, config, options = ZOO[name]
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(getattr(transformers, config)(**options)).eval()
    perturb(model)
    model.to(dtype).save_pretrained(folder)
    return model


def perturb(model: Any, amount: float = 0.05, *, frozen: bool = False) -> None:
    """Adds noise to all parameters, so that biases and norms matter.

    Frozen parameters, such as stored sinusoids, follow from the config and are left alone, unless
    a model takes them as they are stored.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad or frozen:
                parameter.add_(torch.randn_like(parameter) * amount)
