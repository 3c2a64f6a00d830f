"""Encoder–decoders of other libraries behind one small interface, with the sizes of our spec."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec as kinds
from regard.families.folder import SpecialTokenIds, describe
from regard.system.errors import SettingError

Tensors = Mapping[str, Tensor]
Forward = Callable[[Tensors], Tensor]  # a batch → logits [B, T, V]
MAX_LENGTH = 512  # positions; sentences are shorter


def nn_transformer(model: kinds.EncoderDecoder, device: torch.device) -> tuple[nn.Module, Forward]:
    """PyTorch's nn.Transformer, with the embeddings and positions of its tutorial around it."""
    d_model = model.d_model
    block = model.encoder.block
    embedding = nn.Embedding(model.target_tokens.vocabulary, d_model)
    transformer = nn.Transformer(
        d_model,
        block.attention.heads,
        model.encoder.layers,
        model.decoder.layers,
        block.feedforward.d_ff,
        block.dropout,
        batch_first=True,
    )
    dropout = nn.Dropout(block.dropout)
    modules = nn.ModuleList([embedding, transformer, dropout]).to(device)
    positions = torch.randn(MAX_LENGTH, d_model, device=device)  # values do not change the time

    def embed(tokens: Tensor) -> Tensor:
        scaled = embedding(tokens) * math.sqrt(d_model)
        return dropout(scaled + positions[: tokens.shape[1]])

    def forward(batch: Tensors) -> Tensor:
        source = batch["source"]
        target = batch["target"]
        # nn.Transformer's padding mask is True for padding.
        padding = ~batch["padding_mask"] if "padding_mask" in batch else None
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=device)
        out = transformer(
            embed(source),
            embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return functional.linear(out, embedding.weight)  # tied, as in the paper: [B, T, V]

    return modules, forward


def marian(model: kinds.EncoderDecoder, device: torch.device) -> tuple[Any, Forward]:
    """transformers' MarianMTModel."""
    transformers = import_peer("transformers")
    config = transformers.MarianConfig(**describe(model, SpecialTokenIds(0, 1, 2, 3)))
    peer = transformers.MarianMTModel(config).to(device)  # random weights

    def forward(batch: Tensors) -> Tensor:
        mask = batch["padding_mask"].long() if "padding_mask" in batch else None
        out = peer(
            input_ids=batch["source"],
            attention_mask=mask,
            decoder_input_ids=batch["target"],
            use_cache=False,  # a training step needs no KV cache
        )
        return out.logits

    return peer, forward


def x_transformers(model: kinds.EncoderDecoder, device: torch.device) -> tuple[nn.Module, Forward]:
    """x-transformers' XTransformer."""
    library = import_peer("x-transformers")
    block = model.encoder.block
    options = {
        "num_tokens": model.target_tokens.vocabulary,
        "max_seq_len": MAX_LENGTH,
        "heads": block.attention.heads,
        "attn_dim_head": block.attention.d_k,
        # The feed-forward width as a multiple of d_model.
        "ff_mult": block.feedforward.d_ff // model.d_model,
        "attn_flash": True,
        "layer_dropout": 0.0,
        "attn_dropout": 0.0,
        "ff_dropout": block.dropout,
        "emb_dropout": block.dropout,
    }
    sides = {"enc": model.encoder, "dec": model.decoder}
    of_sides = {
        f"{side}_{key}": value
        for side, stack in sides.items()
        for key, value in {**options, "depth": stack.layers}.items()
    }
    peer = library.XTransformer(dim=model.d_model, tie_token_emb=True, **of_sides).to(device)

    def forward(batch: Tensors) -> Tensor:
        mask = batch.get("padding_mask")  # True for tokens, as ours
        memory = peer.encoder(batch["source"], mask=mask, return_embeddings=True)
        return peer.decoder.net(batch["target"], context=memory, context_mask=mask)

    return peer, forward


TRAINABLE: dict[str, Callable[[kinds.EncoderDecoder, torch.device], tuple[Any, Forward]]] = {
    "nn.Transformer": nn_transformer,
    "transformers": marian,
    "x-transformers": x_transformers,
}


# The modules of the peers that are packages of their own.
MODULES = {
    "transformers": "transformers",
    "x-transformers": "x_transformers",
    "ctranslate2": "ctranslate2",
}


def require_installed(names: Sequence[str]) -> None:
    """Raises `SettingError` for the first peer that is missing, before anything is measured."""
    for name in names:
        if name in MODULES and importlib.util.find_spec(MODULES[name]) is None:
            raise SettingError(f"{name} is not installed", f"pip install {name}, or remove it")


def import_peer(name: str) -> Any:
    """Imports another library, which then says nothing but its errors."""
    require_installed([name])
    module = importlib.import_module(MODULES[name])
    if name == "transformers":
        module.utils.logging.set_verbosity_error()
        module.utils.logging.disable_progress_bar()
    return module
