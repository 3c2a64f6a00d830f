"""Other people's encoder–decoders behind one small interface, with the sizes of one of our specs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec as kinds
from regard.errors import SettingError

Tensors = Mapping[str, Tensor]
Forward = Callable[[Tensors], Tensor]  # a batch → logits [B, T, V]


def nn_transformer(model: kinds.EncoderDecoder, device: torch.device) -> tuple[nn.Module, Forward]:
    """PyTorch's nn.Transformer, with the embeddings and positions that its tutorial puts around it."""
    d, block, vocabulary = model.d_model, model.encoder.block, model.target.vocabulary
    table = nn.Embedding(vocabulary, d)
    inner = nn.Transformer(
        d, block.attention.heads, model.encoder.layers, model.decoder.layers, block.feedforward.d_ff, block.dropout,
        batch_first=True,
    )  # fmt: skip
    dropout = nn.Dropout(block.dropout)
    whole = nn.ModuleList([table, inner, dropout]).to(device)
    positions = torch.randn(512, d, device=device)

    def embed(tokens: Tensor) -> Tensor:
        out: Tensor = dropout(table(tokens) * math.sqrt(d) + positions[: tokens.shape[1]])
        return out

    def forward(batch: Tensors) -> Tensor:
        source, target = batch["source"], batch["target"]
        hidden = ~batch["padding_mask"] if "padding_mask" in batch else None
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=device)
        out = inner(
            embed(source), embed(target), tgt_mask=causal, tgt_is_causal=True,
            src_key_padding_mask=hidden, memory_key_padding_mask=hidden,
        )  # fmt: skip
        return functional.linear(out, table.weight)

    return whole, forward


def marian(
    model: kinds.EncoderDecoder, device: torch.device, folder: Path | None = None
) -> tuple[Any, Forward]:
    """transformers' MarianMTModel, from a folder that we wrote or with fresh weights."""
    transformers = library("transformers", "transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if folder is None:
        from regard.families.folder import SpecialTokenIds, describe

        whole = transformers.MarianMTModel(
            transformers.MarianConfig(**describe(model, SpecialTokenIds(0, 1, 2, 3)))
        )
    else:
        whole = transformers.MarianMTModel.from_pretrained(folder)
    whole.to(device)

    def forward(batch: Tensors) -> Tensor:
        mask = batch["padding_mask"].long() if "padding_mask" in batch else None
        out = whole(
            input_ids=batch["source"],
            attention_mask=mask,
            decoder_input_ids=batch["target"],
            use_cache=False,
        )
        logits: Tensor = out.logits
        return logits

    return whole, forward


def x_transformers(model: kinds.EncoderDecoder, device: torch.device) -> tuple[nn.Module, Forward]:
    peer = library("x_transformers", "x-transformers")
    block, vocabulary = model.encoder.block, model.target.vocabulary
    sizes = {
        f"{side}_{key}": value
        for side, layers in (("enc", model.encoder.layers), ("dec", model.decoder.layers))
        for key, value in {
            "num_tokens": vocabulary, "max_seq_len": 512, "depth": layers, "heads": block.attention.heads,
            "attn_dim_head": block.attention.d_k, "ff_mult": block.feedforward.d_ff // model.d_model,
            "attn_flash": True, "layer_dropout": 0.0, "attn_dropout": 0.0, "ff_dropout": block.dropout,
            "emb_dropout": block.dropout,
        }.items()
    }  # fmt: skip
    whole = peer.XTransformer(dim=model.d_model, tie_token_emb=True, **sizes).to(device)

    def forward(batch: Tensors) -> Tensor:
        mask = batch.get("padding_mask")
        memory = whole.encoder(batch["source"], mask=mask, return_embeddings=True)
        logits: Tensor = whole.decoder.net(batch["target"], context=memory, context_mask=mask)
        return logits

    return whole, forward


TRAINED: dict[str, Callable[[kinds.EncoderDecoder, torch.device], tuple[Any, Forward]]] = {
    "nn.Transformer": nn_transformer,
    "transformers": marian,
    "x-transformers": x_transformers,
}


def library(name: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingError(
            f"{package} is not installed ({error})", f"pip install {package}, or leave it out"
        ) from None
