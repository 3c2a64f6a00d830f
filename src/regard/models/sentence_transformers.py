"""What a sentence-transformers folder says about turning hidden states into one vector: modules.json and what it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard import disk
from regard.errors import ModelError

# The keys of a Pooling module's config.json, and what each makes of the states x [B, T, D] at real places w [B, T, 1].
_MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pooling_mode_cls_token": lambda x, w: x[:, 0],
    "pooling_mode_max_tokens": lambda x, w: x.masked_fill(w == 0, float("-inf")).amax(dim=1),
    "pooling_mode_mean_tokens": lambda x, w: (x * w).sum(dim=1) / w.sum(dim=1),
    "pooling_mode_mean_sqrt_len_tokens": lambda x, w: (x * w).sum(dim=1) / w.sum(dim=1).sqrt(),
    "pooling_mode_weightedmean_tokens": lambda x, w: _weighted(x, w),
    "pooling_mode_lasttoken": lambda x, w: x[torch.arange(len(x), device=x.device), _last(w)],
}
# Newer files name the mode instead of a flag for each.
_WORDS = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip


@dataclass(frozen=True)
class SentencePooling:
    """`modes`: ways to gather the states of a text, side by side; `most`: the tokens a text may have; `prompt` is put before
    it. The mean of the real places, where no folder says otherwise."""

    modes: tuple[str, ...] = ("pooling_mode_mean_tokens",)
    normalize: bool = False
    most: int | None = None
    lower: bool = False
    prompt: str = ""

    @classmethod
    def open(cls, folder: Path | None) -> SentencePooling:
        if folder is None or not (folder / "modules.json").is_file():
            return cls()
        modules = disk.read_json(folder / "modules.json", ModelError)
        if not isinstance(modules, list) or not all(
            isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules
        ):
            raise ModelError(
                f"{folder}/modules.json is no list of modules", "fetch the folder again"
            )
        names = [module["type"].split(".")[-1] for module in modules]
        if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise ModelError(
                f"{folder} makes its vectors by {', '.join(names)}",
                "only Transformer, Pooling and Normalize are understood",
            )
        modes = _modes(_inside(folder, str(modules[1].get("path")), "config.json"))
        first = _inside(folder, str(modules[0].get("path", "")), "sentence_bert_config.json")
        said = _inside(folder, "", "config_sentence_transformers.json")
        prompts = said.get("prompts") or {}
        prompt = prompts.get(said.get("default_prompt_name"), "")
        most = first.get("max_seq_length")
        return cls(modes, names[-1] == "Normalize", most, bool(first.get("do_lower_case")), prompt)

    def text(self, text: str) -> str:
        text = self.prompt + text.strip()
        return text.lower() if self.lower else text

    def __call__(self, hidden: Tensor, padding_mask: Tensor | None) -> Tensor:
        """[B, T, D] → [B, D], or wider where several modes stand side by side."""
        here = (
            torch.ones_like(hidden[..., :1])
            if padding_mask is None
            else padding_mask[..., None].to(hidden.dtype)
        )
        vectors = torch.cat([_MODES[mode](hidden, here) for mode in self.modes], dim=-1)
        return functional.normalize(vectors, dim=-1) if self.normalize else vectors


def _weighted(x: Tensor, w: Tensor) -> Tensor:
    """Later places count more."""
    w = w * torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
    return (x * w).sum(dim=1) / w.sum(dim=1)


def _last(w: Tensor) -> Tensor:
    places = torch.arange(w.shape[1], device=w.device)
    return torch.where(w[..., 0] > 0, places, 0).amax(dim=1)


def _modes(said: Mapping[str, Any]) -> tuple[str, ...]:
    known = {
        "word_embedding_dimension",
        "embedding_dimension",
        "include_prompt",
        "pooling_mode",
        *_MODES,
    }
    strange = [key for key in said if key not in known]
    named = said.get("pooling_mode")
    words = [named] if isinstance(named, str) else named or []
    modes = [
        *(_WORDS.get(word, word) for word in words),
        *(mode for mode in _MODES if said.get(mode) is True),
    ]
    if (
        strange
        or not modes
        or not all(mode in _MODES for mode in modes)
        or said.get("include_prompt") is False
    ):
        raise ModelError(
            f"this way of pooling is not understood: {dict(said)}", f"known: {', '.join(_MODES)}"
        )
    return tuple(modes)


def _inside(folder: Path, path: str, name: str) -> dict[str, Any]:
    """A config of a module; it must not lead out of its folder."""
    place = (folder / path / name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise ModelError(f"modules.json leads out of {folder}: {path}", "fetch the folder again")
    return disk.read_json_object(place, ModelError)
