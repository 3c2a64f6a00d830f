"""The loss that a call computes of `labels`, as the classes of transformers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec as kinds
from regard.data.padding import IGNORED
from regard.families import folder as folders
from regard.system.errors import SettingError

LABELS = ("labels", "start_positions", "end_positions")


def shift_right(ids: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Ids [B, T] behind the start token, without the last of them: what a decoder reads.

    Positions that a loss ignores are padding. mBART has no start token: the last one of a text, its
    language, comes first.
    """
    ids = torch.where(ids == IGNORED, config.get("pad_token_id") or 0, ids)
    if config.get("model_type") == "mbart":
        ends = ids.ne(config.get("pad_token_id", -1)).sum(dim=-1, keepdim=True) - 1
        return torch.cat([ids.gather(1, ends), ids[:, :-1]], dim=1)
    return functional.pad(ids[:, :-1], (1, 0), value=folders.start_token_id(config))


def add_decoder_inputs(
    spec: kinds.Model, config: Mapping[str, Any], inputs: dict[str, Tensor], labels: Tensor | None
) -> None:
    """Adds what a decoder reads where the caller does not say it: of a model that writes, what
    comes before each label; of another one, such as a classifier, the source again."""
    for one in spec.inputs:
        if one.name == "decoder_input_ids" and one.name not in inputs:
            read = labels if one.required else inputs.get(spec.main_input_name)
            if read is not None:
                inputs[one.name] = shift_right(read, config)


def loss(
    spec: kinds.Model,
    config: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    labels: Mapping[str, Tensor],
) -> Tensor:
    """The mean loss of the labels of a call; those of −100 are ignored."""
    if spec.task == "answer":
        return _answer_loss(outputs, labels)
    if "labels" not in labels or "logits" not in outputs:
        raise SettingError(
            f"this model computes no loss of {' and '.join(labels)}",
            "call it without labels, and compute the loss of its outputs",
        )
    logits = outputs["logits"]
    wanted = labels["labels"].to(logits.device)
    match spec.task:
        case "classify":
            return _class_loss(logits, wanted, config.get("problem_type"))
        case "detect":
            shown = inputs.get("attention_mask", torch.ones_like(wanted)).bool()
            return functional.binary_cross_entropy_with_logits(logits[shown], wanted[shown].float())
        case "transcribe":
            return _ctc_loss(spec.front_ends["encoder"], config, inputs, logits, wanted)
    rows = logits.shape[:-1]
    if wanted.is_floating_point() or wanted.numel() != rows.numel():
        raise SettingError(
            f"labels has shape {list(wanted.shape)} and dtype {wanted.dtype}",
            f"pass a torch.int64 tensor {list(rows)}",
        )
    # Each token of a language model that reads no source is a label of those before it.
    if spec.task is None and spec.kv_cache_size is not None and not spec.is_encoder_decoder:
        logits = logits[:, :-1]
        wanted = wanted[:, 1:]
    return functional.cross_entropy(logits.flatten(0, -2).float(), wanted.flatten().long())


def _answer_loss(outputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> Tensor:
    """The mean of both ends; those behind the text are ignored."""
    losses = []
    for end in ("start", "end"):
        if f"{end}_positions" not in labels:
            raise SettingError(f"a loss of answers needs {end}_positions", f"pass {end}_positions")
        logits = outputs[f"{end}_logits"]
        wanted = labels[f"{end}_positions"].to(logits.device).flatten()
        length = logits.shape[-1]
        wanted = wanted.clamp(0, length)
        losses.append(functional.cross_entropy(logits, wanted, ignore_index=length))
    return (losses[0] + losses[1]) / 2


def _class_loss(logits: Tensor, wanted: Tensor, problem_type: str | None) -> Tensor:
    """By the problem_type of config.json, or by the labels, as transformers chooses."""
    if problem_type is None and logits.shape[-1] == 1:
        problem_type = "regression"
    elif problem_type is None and wanted.is_floating_point():
        problem_type = "multi_label_classification"
    if problem_type == "regression":
        return functional.mse_loss(logits.reshape(wanted.shape), wanted.to(logits.dtype))
    if problem_type == "multi_label_classification":
        return functional.binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype))
    return functional.cross_entropy(logits, wanted.flatten())


def _ctc_loss(
    waves: Any,  # the front end
    config: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    logits: Tensor,
    wanted: Tensor,
) -> Tensor:
    samples = inputs["input_values"]
    lengths = inputs.get("attention_mask", torch.ones_like(samples)).sum(dim=-1).long().tolist()
    spoken = wanted >= 0
    return functional.ctc_loss(
        logits.float().log_softmax(dim=-1).transpose(0, 1),
        wanted[spoken],
        torch.tensor([waves.positions(length) for length in lengths]),
        spoken.sum(dim=-1),
        blank=config.get("pad_token_id") or 0,
        reduction=config.get("ctc_loss_reduction", "sum"),
        zero_infinity=config.get("ctc_zero_infinity", False),
    )
