"""sentence-transformers folders: how hidden states are pooled into one vector for a text.

Read from modules.json and the config of each module that it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.system import disk
from regard.system.arguments import is_whole
from regard.system.errors import ModelError

# --- pooling modes ---
# Each takes hidden states x [B, T, D] and weights w [B, T, 1], 1 for tokens and 0 for padding.


def _mean_tokens(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sum(dim=1) / w.sum(dim=1)


def _weighted_mean_tokens(x: Tensor, w: Tensor) -> Tensor:
    """The mean with weights 1, 2, 3, …: later tokens of a causal model have read more."""
    numbers = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]  # [T, 1]
    return _mean_tokens(x, w * numbers)


def _last_token(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.arange(len(x), device=x.device)
    positions = torch.arange(w.shape[1], device=w.device)
    last = torch.where(w[..., 0] > 0, positions, 0).amax(dim=1)  # [B]
    return x[rows, last]


# Each mode with its flag in a Pooling module's config.json. Newer files have one key,
# `pooling_mode`, with the name of the mode, instead of a flag for each.
_POOLING: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "cls": ("pooling_mode_cls_token", lambda x, w: x[:, 0]),
    "max": (
        "pooling_mode_max_tokens",
        lambda x, w: x.masked_fill(w == 0, float("-inf")).amax(dim=1),
    ),
    "mean": ("pooling_mode_mean_tokens", _mean_tokens),
    "mean_sqrt_len_tokens": (
        "pooling_mode_mean_sqrt_len_tokens",
        # The sum of n independent vectors grows as √n: texts of all lengths get alike norms.
        lambda x, w: _mean_tokens(x, w) * w.sum(dim=1).sqrt(),
    ),
    "weightedmean": ("pooling_mode_weightedmean_tokens", _weighted_mean_tokens),
    "lasttoken": ("pooling_mode_lasttoken", _last_token),
}
_KEYS = {
    "word_embedding_dimension",
    "embedding_dimension",
    "include_prompt",
    "pooling_mode",
    *(flag for flag, _ in _POOLING.values()),
}
_MODULES = ["Transformer", "Pooling", "Normalize"]  # the last one may be missing


@dataclass(frozen=True)
class SentencePooling:
    """Pooling of token states into one vector; mean pooling where no folder says otherwise.

    The vectors of several `modes` are concatenated. A text may have `max_seq_length` tokens;
    `prompt` is put before it.
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompt: str = ""

    @classmethod
    def open(cls, folder: Path | None) -> SentencePooling:
        """The pooling that a folder's modules.json describes."""
        if folder is None or not (folder / "modules.json").is_file():
            return cls()
        modules = disk.read_json(folder / "modules.json", ModelError)
        try:
            # Types are Python paths: sentence_transformers.models.Pooling.
            names = [module["type"].split(".")[-1] for module in modules]
        except (TypeError, KeyError, AttributeError):
            raise ModelError(
                f"{folder}/modules.json is not a list of modules", "download the folder again"
            ) from None
        if names not in (_MODULES, _MODULES[:2]):
            raise ModelError(
                f"{folder} has unsupported modules: {', '.join(names)}",
                "use a model with Transformer, Pooling and Normalize only",
            )
        transformer = _module_config(
            folder, str(modules[0].get("path", "")), "sentence_bert_config.json"
        )
        pooling = _module_config(folder, str(modules[1].get("path")), "config.json")
        general = _module_config(folder, "", "config_sentence_transformers.json")
        max_seq_length = transformer.get("max_seq_length")
        if max_seq_length is not None and not is_whole(max_seq_length, 1):
            raise ModelError(
                f"sentence_bert_config.json: max_seq_length = {max_seq_length!r} is invalid",
                "correct it, or remove it",
            )
        # A model may name several prompts, one of them as the default.
        prompts = general.get("prompts") or {}
        return cls(
            modes=_pooling_modes(pooling),
            normalize=names[-1] == "Normalize",
            max_seq_length=max_seq_length,
            do_lower_case=bool(transformer.get("do_lower_case")),
            prompt=prompts.get(general.get("default_prompt_name"), ""),
        )

    def prepare_text(self, text: str) -> str:
        """The text as the tokenizer is to read it: with the prompt, and in lower case if asked."""
        text = self.prompt + text.strip()
        return text.lower() if self.do_lower_case else text

    def __call__(self, hidden: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Pools hidden states [B, T, D] to [B, D], or [B, n·D] with n modes."""
        if padding_mask is None:
            weights = torch.ones_like(hidden[..., :1])  # [B, T, 1]
        else:
            weights = padding_mask[..., None].to(hidden.dtype)
        # In the order of sentence-transformers: the dimensions of stored vectors depend on it.
        vectors = torch.cat([_POOLING[mode][1](hidden, weights) for mode in self.modes], dim=-1)
        if self.normalize:
            return functional.normalize(vectors, dim=-1)
        return vectors


def _pooling_modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The modes that a Pooling module's config.json switches on, in either notation."""
    modes = config.get("pooling_mode") or []
    if isinstance(modes, str):
        modes = [modes]
    modes = [*modes, *(mode for mode, (flag, _) in _POOLING.items() if config.get(flag) is True)]
    is_known = set(config) <= _KEYS and set(modes) <= set(_POOLING)
    # include_prompt=false would leave the prompt's tokens out of the mean.
    if not is_known or not modes or config.get("include_prompt") is False:
        raise ModelError(
            f"unsupported pooling: {dict(config)}",
            f"use one of: {', '.join(_POOLING)}",
        )
    return tuple(modes)


def _module_config(folder: Path, path: str, name: str) -> dict[str, Any]:
    """The config of a module, empty where it has none."""
    file = (folder / path / name).resolve()
    # modules.json comes from elsewhere: its paths must not lead out of the folder.
    if not file.is_relative_to(folder.resolve()):
        raise ModelError(
            f"modules.json refers to a path outside {folder}: {path}", "download the folder again"
        )
    return disk.read_json_object(file, ModelError)
