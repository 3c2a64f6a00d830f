"""Folders as their authors released them: the config.json of well-known checkpoints, with every odd key that they have and
only the sizes made small, and files with the names, buffers, copies and precisions that theirs have. They open as
transformers opens them, and are written back as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from zoo import perturb

transformers = pytest.importorskip("transformers")

Tensors = dict[str, Tensor]
BERT = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02, "intermediate_size": 50, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 40,
    "num_attention_heads": 6, "num_hidden_layers": 2, "vocab_size": 61,
}  # fmt: skip
GOOGLE = {
    "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
}  # fmt: skip
THREE = {
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
}  # fmt: skip
FAIRSEQ = {
    "activation_dropout": 0.1, "add_bias_logits": False, "attention_dropout": 0.1,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "d_model": 24, "decoder_attention_heads": 4, "decoder_ffn_dim": 34,
    "decoder_layerdrop": 0.0, "decoder_layers": 2, "dropout": 0.1, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 34,
    "encoder_layerdrop": 0.0, "encoder_layers": 2, "gradient_checkpointing": False,
    "init_std": 0.02,
    "is_encoder_decoder": True, "max_position_embeddings": 40, "num_hidden_layers": 2,
    "use_cache": True,
    "vocab_size": 61, **THREE,
}  # fmt: skip
LLAMA = {
    "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 36,
    "initializer_range": 0.02, "intermediate_size": 50, "max_position_embeddings": 40,
    "num_attention_heads": 6,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.35.0",
    "use_cache": True,
    "vocab_size": 61,
}  # fmt: skip
GPT = {
    "attn_pdrop": 0.1, "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5,
    "n_ctx": 40, "n_embd": 36,
    "n_head": 6, "n_layer": 2, "n_positions": 40, "resid_pdrop": 0.1, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 61,
}  # fmt: skip
T5 = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 34, "d_kv": 5, "d_model": 24,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0, "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-6, "model_type": "t5", "n_positions": 512, "num_heads": 3,
    "num_layers": 2,
    "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
    "task_specific_params": {"translation_en_to_de": {"prefix": "translate English to German: ",
    "num_beams": 4}},
    "vocab_size": 61,
}  # fmt: skip
PICTURE = {
    "attention_probs_dropout_prob": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
    "hidden_size": 36,
    "image_size": 12, "initializer_range": 0.02, "intermediate_size": 50, "layer_norm_eps": 1e-12,
    "num_attention_heads": 6, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 4,
    "qkv_bias": True,
    # Two classes of ImageNet have one name.
    "id2label": {"0": "crane", "1": "tabby", "2": "crane"}, "label2id": {"crane": 2, "tabby": 1},
}  # fmt: skip
# What transformers 4.16 wrote of every config that was inside another.
INSIDE = {
    "_name_or_path": "", "add_cross_attention": False, "architectures": None,
    "attention_dropout": 0.0,
    "bad_words_ids": None, "bos_token_id": 0, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False, "dropout": 0.0,
    "early_stopping": False,
    "encoder_no_repeat_ngram_size": 0, "eos_token_id": 2, "finetuning_task": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None, "gradient_checkpointing": False, "hidden_act": "quick_gelu",
    "hidden_size": 36,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_factor": 1.0,
    "initializer_range": 0.02,
    "intermediate_size": 50, "is_decoder": False, "is_encoder_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "layer_norm_eps": 1e-5, "length_penalty": 1.0,
    "max_length": 20,
    "min_length": 0, "no_repeat_ngram_size": 0, "num_attention_heads": 6, "num_beam_groups": 1,
    "num_beams": 1,
    "num_hidden_layers": 2, "num_return_sequences": 1, "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False, "pad_token_id": 1, "prefix": None, "problem_type": None,
    "projection_dim": 20,
    "pruned_heads": {}, "remove_invalid_values": False, "repetition_penalty": 1.0,
    "return_dict": True,
    "return_dict_in_generate": False, "sep_token_id": None, "task_specific_params": None,
    "temperature": 1.0,
    "tie_encoder_decoder": False, "tie_word_embeddings": True, "tokenizer_class": None,
    "top_k": 50, "top_p": 1.0,
    "torch_dtype": None, "torchscript": False, "transformers_version": "4.16.0.dev0",
    "typical_p": 1.0,
    "use_bfloat16": False,
}  # fmt: skip
DEBERTA = {
    "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36, "initializer_range": 0.02, "intermediate_size": 50,
    "max_position_embeddings": 40,
    "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1,
    "position_biased_input": False,
    "num_attention_heads": 6, "num_hidden_layers": 2, "type_vocab_size": 0, "vocab_size": 61,
}  # fmt: skip
WAVES = {
    "activation_dropout": 0.1, "apply_spec_augment": True, "attention_dropout": 0.1,
    "bos_token_id": 1,
    "codevector_dim": 256, "contrastive_logits_temperature": 0.1, "conv_bias": False,
    "conv_dim": [12, 12, 12],
    "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2], "ctc_loss_reduction": "sum",
    "ctc_zero_infinity": False,
    "diversity_loss_weight": 0.1, "do_stable_layer_norm": False, "eos_token_id": 2,
    "feat_extract_activation": "gelu",
    "feat_extract_dropout": 0.0, "feat_extract_norm": "group", "feat_proj_dropout": 0.1,
    "feat_quantizer_dropout": 0.0,
    "final_dropout": 0.1, "gradient_checkpointing": False, "hidden_act": "gelu",
    "hidden_dropout": 0.1,
    "hidden_dropout_prob": 0.1, "hidden_size": 24, "initializer_range": 0.02,
    "intermediate_size": 34,
    "layer_norm_eps": 1e-5, "layerdrop": 0.1, "mask_feature_length": 10, "mask_feature_prob": 0.0,
    "mask_time_length": 10, "mask_time_prob": 0.05, "model_type": "wav2vec2",
    "num_attention_heads": 4,
    "num_codevector_groups": 2, "num_codevectors_per_group": 320,
    "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 16, "num_feat_extract_layers": 3, "num_hidden_layers": 2,
    "num_negatives": 100,
    "pad_token_id": 0, "proj_codevector_dim": 256, "transformers_version": "4.7.0.dev0",
    "vocab_size": 32,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {
        **BERT, "architectures": ["BertForMaskedLM"], "gradient_checkpointing": False,
        "model_type": "bert",
        "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0",
        "type_vocab_size": 2, "use_cache": True,
    },
    "bert-large-cased": {
        **BERT, **GOOGLE, "architectures": ["BertForMaskedLM"], "model_type": "bert",
        "pad_token_id": 0,
        "type_vocab_size": 2,
    },
    "bert-large-finetuned-conll03": {
        **BERT, **GOOGLE, **THREE, "_num_labels": 3,
        "architectures": ["BertForTokenClassification"],
        "model_type": "bert", "pad_token_id": 0, "output_past": True, "type_vocab_size": 2,
    },
    "all-MiniLM-L6-v2": {
        **BERT, "_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"],
        "gradient_checkpointing": False, "model_type": "bert", "pad_token_id": 0,
        "type_vocab_size": 2,
        "position_embedding_type": "absolute", "transformers_version": "4.8.2", "use_cache": True,
    },
    "ms-marco-MiniLM-L-6-v2": {
        **BERT, "architectures": ["BertForSequenceClassification"], "gradient_checkpointing": False,
        "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "model_type": "bert",
        "pad_token_id": 0,
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        "type_vocab_size": 2,
        "position_embedding_type": "absolute",
    },
    "roberta-base": {
        **BERT, "architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 42, "model_type": "roberta", "pad_token_id": 1,
        "type_vocab_size": 1,
    },
    "roberta-base-squad2": {
        **BERT, "architectures": ["RobertaForQuestionAnswering"], "bos_token_id": 0,
        "eos_token_id": 2,
        "gradient_checkpointing": False, "language": "english", "layer_norm_eps": 1e-5,
        "max_position_embeddings": 42,
        "model_type": "roberta", "name": "Roberta", "pad_token_id": 1, "type_vocab_size": 1,
        "position_embedding_type": "absolute", "use_cache": True,
    },
    "distilbert-base-uncased-finetuned-sst-2-english": {
        "activation": "gelu", "architectures": ["DistilBertForSequenceClassification"],
        "attention_dropout": 0.1,
        "dim": 36, "dropout": 0.1, "finetuning_task": "sst-2", "hidden_dim": 50,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "initializer_range": 0.02,
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "max_position_embeddings": 40,
        "model_type": "distilbert",
        "n_heads": 6, "n_layers": 2, "output_past": True, "pad_token_id": 0, "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
        "vocab_size": 61,
    },
    "distilbert-base-uncased": {
        "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1,
        "dim": 36,
        "dropout": 0.1, "hidden_dim": 50, "initializer_range": 0.02, "max_position_embeddings": 40,
        "model_type": "distilbert", "n_heads": 6, "n_layers": 2, "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": False, "tie_weights_": True,
        "vocab_size": 61,
        "transformers_version": "4.10.0.dev0",
    },
    "albert-base-v2": {
        **BERT, "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0,
        "bos_token_id": 2,
        "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 20,
        "eos_token_id": 3, "gap_size": 0,
        "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "inner_group_num": 1,
        "model_type": "albert",
        "net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0, "pad_token_id": 0,
        "type_vocab_size": 2,
    },
    "electra-small-discriminator": {
        **BERT, "architectures": ["ElectraForPreTraining"], "embedding_size": 20,
        "model_type": "electra",
        "pad_token_id": 0, "position_embedding_type": "absolute", "summary_activation": "gelu",
        "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True,
        "type_vocab_size": 2,
        "use_cache": True,
    },
    "electra-small-generator": {
        **BERT, "architectures": ["ElectraForMaskedLM"], "embedding_size": 20, "max_length": 128,
        "model_type": "electra", "pad_token_id": 0, "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
        "summary_type": "first", "summary_use_proj": True, "type_vocab_size": 2,
    },
    "deberta-v3-base": DEBERTA,
    "nli-deberta-v3-base": {
        **DEBERTA, **THREE, "architectures": ["DebertaV2ForSequenceClassification"],
        "pos_att_type": ["p2c", "c2p"],
        "pooler_dropout": 0, "pooler_hidden_act": "gelu", "pooler_hidden_size": 36,
        "pad_token_id": 0,
        "legacy": True, "torch_dtype": "float32", "transformers_version": "4.11.0",
    },
    "all-mpnet-base-v2": {
        **BERT, "_name_or_path": "microsoft/mpnet-base", "architectures": ["MPNetForMaskedLM"],
        "bos_token_id": 0,
        "eos_token_id": 2, "layer_norm_eps": 1e-5, "max_position_embeddings": 42,
        "model_type": "mpnet",
        "pad_token_id": 1, "relative_attention_num_buckets": 32, "transformers_version": "4.8.2",
    },
    "vit-base-patch16-224": {
        **PICTURE, "_name_or_path": "google/vit-base-patch16-224-in21k",
        "architectures": ["ViTForImageClassification"],
        "encoder_stride": 16, "model_type": "vit", "transformers_version": "4.13.0.dev0",
    },
    "vit-base-patch16-224-in21k": {
        **{key: value for key, value in PICTURE.items() if "label" not in key},
        "_name_or_path": "google/vit-base-patch16-224-in21k", "architectures": ["ViTModel"],
        "encoder_stride": 16,
        "model_type": "vit", "transformers_version": "4.13.0.dev0",
    },
    "deit-base-distilled-patch16-224": {
        **PICTURE, "architectures": ["DeiTForImageClassificationWithTeacher"], "encoder_stride": 16,
        "model_type": "deit", "torch_dtype": "float32", "transformers_version": "4.13.0.dev0",
    },
    "clip-vit-base-patch32": {
        "architectures": ["CLIPModel"], "initializer_factor": 1.0, "logit_scale_init_value": 2.6592,
        "model_type": "clip", "projection_dim": 20,
        "text_config": {
            **INSIDE, "max_position_embeddings": 40, "model_type": "clip_text_model",
            "vocab_size": 61,
        },
        "text_config_dict": None, "torch_dtype": "float32", "transformers_version": None,
        "vision_config": {**INSIDE, "image_size": 12, "model_type": "clip_vision_model",
        "patch_size": 4},
        "vision_config_dict": None,
    },
    "wav2vec2-base-960h": {
        **WAVES, "_name_or_path": "facebook/wav2vec2-base-960h",
        "architectures": ["Wav2Vec2ForCTC"],
    },
    "wav2vec2-large-960h-lv60-self": {
        **WAVES, "_name_or_path": "facebook/wav2vec2-large-960h-lv60-self",
        "architectures": ["Wav2Vec2ForCTC"],
        "conv_bias": True, "do_stable_layer_norm": True, "feat_extract_norm": "layer",
        "layerdrop": 0.1,
        "mask_channel_length": 10, "mask_channel_min_space": 1, "mask_channel_other": 0.0,
        "mask_channel_prob": 0.0,
        "mask_channel_selection": "static", "mask_time_min_space": 1, "mask_time_other": 0.0,
        "mask_time_selection": "static", "freeze_feat_extract_train": True,
        "no_mask_channel_overlap": False,
        "no_mask_time_overlap": False,
    },
    "openai-gpt": {
        **GPT, "afn": "gelu", "architectures": ["OpenAIGPTLMHeadModel"],
        "model_type": "openai-gpt", "n_special": 0,
        "predict_special_tokens": True,
    },
    "gpt2": {
        **GPT, "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "bos_token_id": 60,
        "eos_token_id": 60, "model_type": "gpt2",
    },
    "distilgpt2": {
        **GPT, "_num_labels": 1, "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "bos_token_id": 60, "eos_token_id": 60, "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "model_type": "gpt2",
    },
    "pythia-70m": {
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "gelu",
        "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 50,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 40, "model_type": "gpt_neox", "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True,
        "vocab_size": 61,
    },
    "gpt-neox-20b": {
        "architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0,
        "bos_token_id": 0,
        "eos_token_id": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 48,
        "initializer_range": 0.02, "intermediate_size": 50, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 40,
        "model_type": "gpt_neox", "num_attention_heads": 3, "num_hidden_layers": 2,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "transformers_version": "4.19.0.dev0", "use_cache": True, "vocab_size": 61,
    },
    "TinyLlama-1.1B": {
        **LLAMA, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "pretraining_tp": 1,
        "rope_scaling": None,
    },
    "Llama-2-7b-hf": {
        **{key: value for key, value in LLAMA.items() if key not in ("rope_theta",
        "attention_bias")},
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 6, "pretraining_tp": 1, "rope_scaling": None,
        "torch_dtype": "float16",
    },
    "llama-7b": {
        "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 36, "intermediate_size": 50, "initializer_range": 0.02,
        "max_sequence_length": 40,
        "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2, "pad_token_id": 0,
        "rms_norm_eps": 1e-6, "torch_dtype": "float16", "transformers_version": "4.28.0.dev0",
        "use_cache": True,
        "vocab_size": 61,
    },
    "Llama-3.2-1B": {
        **LLAMA, "architectures": ["LlamaForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 57,
        "eos_token_id": [58, 59, 60], "head_dim": 6, "mlp_bias": False, "model_type": "llama",
        "pretraining_tp": 1,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True,
    },
    "Mistral-7B-v0.1": {
        **{key: value for key, value in LLAMA.items() if key != "attention_bias"},
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4,
    },
    "Mistral-7B-Instruct-v0.3": {
        **{key: value for key, value in LLAMA.items() if key != "attention_bias"},
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "model_type": "mistral",
        "rope_theta": 1000000.0, "sliding_window": None,
    },
    "gemma-2b": {
        **{key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"},
        "architectures": ["GemmaForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
        "eos_token_id": 1,
        "head_dim": 8, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh",
        "model_type": "gemma",
        "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_scaling": None,
    },
    "gemma-2b, first edition": {
        **{key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"},
        "architectures": ["GemmaForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
        "eos_token_id": 1,
        "head_dim": 8, "hidden_act": "gelu", "model_type": "gemma", "num_key_value_heads": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6, "rope_scaling": None,
    },
    "gemma-2-2b": {
        **{key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"},
        "architectures": ["Gemma2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
        "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "head_dim": 8, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "model_type": "gemma2", "pad_token_id": 0,
        "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-6, "sliding_window": 4,
    },
    "gemma-3-1b-it": {
        **{key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"},
        "architectures": ["Gemma3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
        "attn_logit_softcapping": None, "cache_implementation": "hybrid", "eos_token_id": [1, 9],
        "final_logit_softcapping": None, "head_dim": 8, "hidden_activation": "gelu_pytorch_tanh",
        "model_type": "gemma3_text", "pad_token_id": 0, "query_pre_attn_scalar": 8,
        "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": 4, "sliding_window_pattern": 2,
    },
    "gpt-oss-20b-BF16": {
        **LLAMA,
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "experts_per_token": 2, "head_dim": 8, "initial_context_length": 16,
        "intermediate_size": 36, "layer_types": ["sliding_attention", "full_attention"],
        "model_type": "gpt_oss", "num_experts_per_tok": 2, "num_local_experts": 4,
        "output_router_logits": False, "pad_token_id": 9,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0,
        "original_max_position_embeddings": 16, "rope_type": "yarn", "truncate": False},
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 4,
        "swiglu_limit": 7.0,
    },
    "Qwen2-0.5B": {
        **{key: value for key, value in LLAMA.items() if key != "attention_bias"},
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "max_window_layers": 24,
        "model_type": "qwen2", "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "Qwen2.5-1.5B": {
        **{key: value for key, value in LLAMA.items() if key != "attention_bias"},
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "max_window_layers": 28,
        "model_type": "qwen2", "rope_theta": 1000000.0, "sliding_window": 4,
        "tie_word_embeddings": True,
        "use_mrope": False, "use_sliding_window": False,
    },
    "opus-mt-en-de": {
        **FAIRSEQ, "_name_or_path": "/tmp/Helsinki-NLP/opus-mt-en-de", "_num_labels": 3,
        "activation_function": "swish",
        "add_final_layer_norm": False, "architectures": ["MarianMTModel"], "bad_words_ids": [[60]],
        "bos_token_id": 0,
        "decoder_start_token_id": 60, "decoder_vocab_size": 61, "eos_token_id": 0,
        "extra_pos_embeddings": 61,
        "forced_eos_token_id": 0, "max_length": 512, "model_type": "marian",
        "normalize_before": False,
        "normalize_embedding": False, "num_beams": 6, "pad_token_id": 60, "scale_embedding": True,
        "share_encoder_decoder_embeddings": True, "static_position_embeddings": True,
        "transformers_version": "4.22.0.dev0",
    },
    "t5-small": T5,
    "t5-base, first edition": {**T5, "architectures": ["T5WithLMHeadModel"]},
    "flan-t5-base": {
        **T5, "dense_act_fn": "gelu_new", "feed_forward_proj": "gated-gelu", "is_gated_act": True,
        "num_decoder_layers": 2, "relative_attention_max_distance": 128,
        "tie_word_embeddings": False,
        "torch_dtype": "float32", "transformers_version": "4.23.1", "use_cache": True,
    },
    "t5-v1_1-small": {
        **{key: value for key, value in T5.items() if key not in ("task_specific_params",
        "n_positions")},
        "feed_forward_proj": "gated-gelu", "num_decoder_layers": 2, "tie_word_embeddings": False,
    },
    "bart-base": {
        **FAIRSEQ, "_name_or_path": "bart-base", "activation_function": "gelu",
        "add_final_layer_norm": False,
        "architectures": ["BartModel"], "bos_token_id": 0, "decoder_start_token_id": 2,
        "early_stopping": True,
        "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "model_type": "bart",
        "no_repeat_ngram_size": 3, "normalize_before": False, "normalize_embedding": True,
        "num_beams": 4,
        "pad_token_id": 1, "scale_embedding": False,
        "task_specific_params": {"summarization": {"max_length": 128}},
        "torch_dtype": "float32", "transformers_version": "4.12.0.dev0",
    },
    "bart-large-cnn": {
        **FAIRSEQ, "_num_labels": 3, "activation_function": "gelu", "add_final_layer_norm": False,
        "architectures": ["BartForConditionalGeneration"], "bos_token_id": 0,
        "decoder_start_token_id": 2,
        "early_stopping": True, "eos_token_id": 2, "force_bos_token_to_be_generated": True,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2, "length_penalty": 2.0, "max_length": 142, "min_length": 56,
        "model_type": "bart",
        "no_repeat_ngram_size": 3, "normalize_before": False, "normalize_embedding": True,
        "num_beams": 4,
        "output_past": True, "pad_token_id": 1, "prefix": " ", "scale_embedding": False,
    },
    "mbart-large-50": {
        **FAIRSEQ, "_name_or_path": "/home/suraj/projects/mbart-50/hf_models/mbart-50-large",
        "_num_labels": 3,
        "activation_function": "gelu", "add_final_layer_norm": True,
        "architectures": ["MBartForConditionalGeneration"], "bos_token_id": 0,
        "decoder_start_token_id": 2,
        "early_stopping": True, "eos_token_id": 2, "forced_eos_token_id": 2, "max_length": 200,
        "model_type": "mbart",
        "normalize_before": True, "normalize_embedding": True, "num_beams": 5, "output_past": True,
        "pad_token_id": 1,
        "scale_embedding": True, "static_position_embeddings": False,
        "tokenizer_class": "MBart50Tokenizer",
        "transformers_version": "4.4.0.dev0",
    },
    "pegasus-xsum": {
        **FAIRSEQ, "activation_function": "relu", "add_final_layer_norm": True,
        "architectures": ["PegasusForConditionalGeneration"], "bos_token_id": 0,
        "decoder_start_token_id": 0,
        "do_blenderbot_90_layernorm": False, "eos_token_id": 1, "extra_pos_embeddings": 0,
        "force_bos_token_to_be_generated": False, "forced_eos_token_id": 1, "length_penalty": 0.6,
        "max_length": 64,
        "model_type": "pegasus", "normalize_before": True, "normalize_embedding": False,
        "num_beams": 8,
        "pad_token_id": 0, "scale_embedding": True, "static_position_embeddings": True,
        "task_specific_params": {"summarization_xsum": {"length_penalty": 0.6, "max_length": 64}},
    },
    "whisper-tiny": {
        **{key: FAIRSEQ[key] for key in FAIRSEQ if "ffn" in key or "heads" in key or "layer" in key},
        "_name_or_path": "openai/whisper-tiny", "activation_dropout": 0.0,
        "activation_function": "gelu",
        "architectures": ["WhisperForConditionalGeneration"], "attention_dropout": 0.0,
        "begin_suppress_tokens": [22, 57], "bos_token_id": 57, "d_model": 24,
        "decoder_start_token_id": 58,
        "dropout": 0.0, "eos_token_id": 57, "forced_decoder_ids": [[1, 59], [2, 60]],
        "init_std": 0.02,
        "is_encoder_decoder": True, "max_length": 448, "max_source_positions": 15,
        "max_target_positions": 40,
        "model_type": "whisper", "num_mel_bins": 8, "pad_token_id": 57, "scale_embedding": False,
        "suppress_tokens": [1, 2, 7], "torch_dtype": "float32",
        "transformers_version": "4.27.0.dev0",
        "use_cache": True, "vocab_size": 61,
    },
    "whisper-large-v3": {
        **{key: FAIRSEQ[key] for key in FAIRSEQ if "ffn" in key or "heads" in key or "layer" in key},
        "_name_or_path": "openai/whisper-large-v3", "activation_dropout": 0.0,
        "activation_function": "gelu",
        "apply_spec_augment": False, "architectures": ["WhisperForConditionalGeneration"],
        "attention_dropout": 0.0,
        "begin_suppress_tokens": [22, 57], "bos_token_id": 57, "classifier_proj_size": 256,
        "d_model": 24,
        "decoder_start_token_id": 58, "dropout": 0.0, "eos_token_id": 57, "init_std": 0.02,
        "is_encoder_decoder": True,
        "mask_feature_length": 10, "mask_feature_min_masks": 0, "mask_feature_prob": 0,
        "mask_time_length": 10,
        "mask_time_min_masks": 2, "mask_time_prob": 0.05, "max_length": 448,
        "max_source_positions": 15,
        "max_target_positions": 40, "median_filter_width": 7, "model_type": "whisper",
        "num_mel_bins": 8,
        "pad_token_id": 57, "scale_embedding": False, "torch_dtype": "float16",
        "transformers_version": "4.36.0.dev0",
        "use_cache": True, "use_weighted_layer_sum": False, "vocab_size": 61,
    },
}  # fmt: skip
# The class that made the file, where config.json does not say it as transformers 5 does.
MADE_BY = {
    "bert-base-uncased": "BertForPreTraining", "bert-large-cased": "BertForPreTraining",
    "deberta-v3-base": "DebertaV2ForMaskedLM", "all-mpnet-base-v2": "MPNetModel",
    "t5-base, first edition": "T5ForConditionalGeneration",
}  # fmt: skip
# The class that transformers is asked for, where that is another.
ASKED = {"bert-base-uncased": "BertForMaskedLM", "bert-large-cased": "BertForMaskedLM"}
# Gemma, DeBERTa, Whisper, CLIP and Wav2Vec2 may differ a little more.
LOOSER = ("gemma", "deberta", "whisper", "clip", "wav2vec2")


def bare(prefix: str, drop: tuple[str, ...] = ()) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name not in drop
        }

    return change


def with_buffers(names: list[str], make: Callable[[], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, **{name: make() for name in names}}


def first_names(tensors: Tensors) -> Tensors:
    """The norms of 2018: gamma and beta."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def name(now: str) -> str:
        return next(
            (now.removesuffix(new) + word for new, word in old.items() if now.endswith(new)), now
        )

    return {name(now): tensor for now, tensor in tensors.items()}


def half(tensors: Tensors) -> Tensors:
    return {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def bfloat(tensors: Tensors) -> Tensors:
    return {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def places() -> Tensor:
    return torch.arange(40)[None]


def causal_mask() -> Tensor:
    return torch.ones(1, 1, 40, 40).tril()


def turns(d: int, base: float = 1e4) -> Callable[[], Tensor]:
    return lambda: 1.0 / base ** (torch.arange(0, d, 2).float() / d)


def masks(prefix: str, name: str, layers: int = 2) -> list[str]:
    return [f"{prefix}{i}.{name}" for i in range(layers)]


# What the files hold otherwise than transformers 5 writes it.
FILES: dict[str, list[Callable[[Tensors], Tensors]]] = {
    "bert-base-uncased": [first_names],
    "bert-large-cased": [first_names, with_buffers(["bert.embeddings.position_ids"], places)],
    "all-MiniLM-L6-v2": [with_buffers(["embeddings.position_ids"], places)],
    "roberta-base": [
        with_buffers(["roberta.embeddings.position_ids"], lambda: torch.arange(42)[None])
    ],
    "albert-base-v2": [with_buffers(["albert.embeddings.position_ids"], places)],
    "all-mpnet-base-v2": [
        with_buffers(["embeddings.position_ids"], lambda: torch.arange(42)[None])
    ],
    "clip-vit-base-patch32": [
        with_buffers(["text_model.embeddings.position_ids"], places),
        with_buffers(["vision_model.embeddings.position_ids"], lambda: torch.arange(10)[None]),
    ],
    "gpt2": [bare("transformer."), with_buffers(masks("h.", "attn.bias"), causal_mask)],
    "distilgpt2": [
        with_buffers(masks("transformer.h.", "attn.bias"), lambda: causal_mask().bool()),
        with_buffers(masks("transformer.h.", "attn.masked_bias"), lambda: torch.tensor(-1e4)),
    ],
    "openai-gpt": [bare("transformer."), with_buffers(masks("h.", "attn.bias"), causal_mask)],
    "pythia-70m": [
        with_buffers(
            masks("gpt_neox.layers.", "attention.bias"), lambda: causal_mask().to(torch.uint8)
        ),
        with_buffers(
            masks("gpt_neox.layers.", "attention.masked_bias"), lambda: torch.tensor(-1e9)
        ),
        with_buffers(masks("gpt_neox.layers.", "attention.rotary_emb.inv_freq"), turns(4)),
        half,
    ],
    "Llama-2-7b-hf": [
        with_buffers(masks("model.layers.", "self_attn.rotary_emb.inv_freq"), turns(6)),
        half,
    ],
    "TinyLlama-1.1B": [bfloat],
    "Mistral-7B-v0.1": [bfloat],
    "gemma-2b": [bfloat],
    "gpt-oss-20b-BF16": [bfloat],
    "bart-base": [],
    "t5-small": [
        with_buffers(
            ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"],
            lambda: torch.randn(32, 3),
        )
    ],
    "whisper-large-v3": [half],
}


def released(name: str, out: Path) -> Path:
    """A folder as its authors could have made it."""
    out.mkdir(exist_ok=True)
    (out / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = transformers.AutoConfig.from_pretrained(out)
    class_name = MADE_BY.get(name) or CONFIGS[name]["architectures"][0]
    torch.manual_seed(len(name))
    model = getattr(transformers, class_name)(config)
    perturb(model)
    model.save_pretrained(out)
    tensors = load_file(out / "model.safetensors")
    for change in FILES.get(name, []):
        tensors = change(tensors)
    save_file(
        {key: tensor.contiguous() for key, tensor in tensors.items()},
        out / "model.safetensors",
        {"format": "pt"},
    )
    (out / "config.json").write_text(json.dumps(CONFIGS[name]))
    return out


def inputs(config: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """A padded batch, and where its outputs count."""
    chance = torch.Generator().manual_seed(1)
    padding_mask = torch.arange(9) < torch.tensor([9, 6, 4])[:, None]
    words = torch.randint(5, 57, (3, 9), generator=chance)
    kind = config["model_type"]
    if kind == "clip":
        words[:, -1] = 60  # the end of a text is its highest id
        return {
            "input_ids": words,
            "pixel_values": torch.randn(3, 3, 12, 12, generator=chance),
        }, padding_mask | True
    if kind in ("vit", "deit"):
        return {"pixel_values": torch.randn(3, 3, 12, 12, generator=chance)}, torch.ones(
            3, 10, dtype=torch.bool
        )
    if kind == "wav2vec2":
        return {"input_values": torch.randn(2, 900, generator=chance)}, torch.ones(
            2, 44, dtype=torch.bool
        )
    if kind == "whisper":
        heard = torch.randn(3, 8, 30, generator=chance)
        return {"input_features": heard, "decoder_input_ids": words}, padding_mask | True
    if config.get("is_encoder_decoder"):
        return {
            "input_ids": words,
            "attention_mask": padding_mask.long(),
            "decoder_input_ids": words.flip(1),
        }, padding_mask | True
    arguments = {"input_ids": words, "attention_mask": padding_mask.long()}
    if config.get("type_vocab_size") == 2:
        arguments["token_type_ids"] = torch.randint(0, 2, (3, 9), generator=chance)
    return arguments, padding_mask


@pytest.mark.parametrize("name", CONFIGS)
def test_it_opens_as_transformers_opens_it(name: str, tmp_path: Path) -> None:
    folder = released(name, tmp_path / "theirs")
    asked = ASKED.get(name) or MADE_BY.get(name) or CONFIGS[name]["architectures"][0]
    theirs = getattr(transformers, asked).from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()  # fmt: skip
    ours = regard.load(folder)
    arguments, padding_mask = inputs(CONFIGS[name])
    compare(theirs, ours, arguments, padding_mask, name)

    back = ours.save(tmp_path / "ours")
    again = getattr(transformers, asked).from_pretrained(
        back, attn_implementation="eager", dtype=torch.float32
    ).eval()  # fmt: skip
    compare(again, ours, arguments, padding_mask, name)
    (tmp_path / "ours" / "config.json").read_text()
    config_json = json.loads((back / "config.json").read_text())
    for key in (
        "eos_token_id",
        "pad_token_id",
        "bos_token_id",
        "id2label",
        "decoder_start_token_id",
    ):
        assert config_json.get(key) == CONFIGS[name].get(key), key


def compare(
    theirs: Any, ours: Any, arguments: dict[str, Tensor], padding_mask: Tensor, name: str
) -> None:
    with torch.inference_mode():
        wanted, result = theirs(**arguments), ours(**arguments)
    names = [key for key in result if key in wanted]
    assert names, (list(result), list(wanted))
    for key in names:
        one, other = result[key].float(), wanted[key].float()
        assert one.shape == other.shape, key
        if one.shape[:2] == padding_mask.shape:
            one, other = one[padding_mask], other[padding_mask]
        tolerance = (2e-5 if name.startswith(LOOSER) else 1e-5) * max(
            1.0, other.abs().mean().item()
        )
        assert (one - other).abs().max().item() <= tolerance, key
