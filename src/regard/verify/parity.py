"""Parity: the same folder, opened here and by transformers, gives the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import spec as kinds
from regard.build import CoreModel
from regard.errors import ModelError, SettingError
from regard.families import folder as folders
from regard.verify.invariants import Comparison, Finding
from regard.verify.random_inputs import Batch, front_end, padding, random_batch, rounding, run

NAME = "here = transformers"
TOLERANCE = 1e-5  # in float32, times the mean of what is compared, if that is above 1
# Their angles, logarithms or long sums are rounded otherwise than ours.
WIDER = {
    "deberta-v2",
    "whisper",
    "clip",
    "clip_text_model",
    "clip_vision_model",
    "wav2vec2",
    "gemma",
    "reformer",
}


def parity(
    folder: str | Path, model: CoreModel, opened: folders.ModelFolder, seed: int = 0
) -> Finding:
    """Main outputs of a padded random batch, in float32 on both sides, at the positions that are real. Where the model itself
    loses more digits than that on the way to float64's answer, as much is allowed to others."""
    try:
        import transformers
    except ImportError:
        raise SettingError(
            "--against transformers needs the package transformers", "pip install transformers"
        ) from None
    if opened.model_type == "regard":
        raise ModelError(
            f"{folder} is in regard's own format, which transformers does not know",
            "leave --against out",
        )
    theirs = _open(transformers, folder, opened)
    pad = padding(opened.config)
    batch = random_batch(opened.spec, pad, seed).like(model)
    batch = (
        batch
        if isinstance(front_end(opened.spec), (kinds.Patches, kinds.Spectrogram))
        else batch.padded(pad)
    )
    theirs.to(next(model.parameters()).device)
    wanted, found = _outputs(theirs, batch, opened.spec), run(model, batch)
    shared = [name for name in found if name in wanted]
    if not shared:
        raise ModelError(
            f"{type(theirs).__name__} gives none of {', '.join(found)}",
            "report this with its config.json",
        )
    pairs = []
    for name in shared:
        ours, padding_mask = found[name]
        other = wanted[name] if wanted[name].ndim == ours.ndim else wanted[name][..., None]
        pairs.append(
            (name, ours, other)
            if padding_mask is None
            else (name, ours[padding_mask], other[padding_mask])
        )
    return comparison(model, batch, opened.model_type)(NAME, *pairs)


def comparison(model: CoreModel, batch: Batch, kind: str) -> Comparison:
    """With another library's float32."""
    return Comparison(TOLERANCE * (2 if kind in WIDER else 1), rounding(model, batch))


def _open(transformers: Any, folder: str | Path, opened: folders.ModelFolder) -> Any:
    """As the class that config.json names. Nothing is downloaded and no code of the folder runs."""
    named = (
        opened.config.get("architectures")
        or folders.describe(opened.spec, model_type=opened.model_type)["architectures"]
    )[0]
    kind = getattr(transformers, str(named), None) or transformers.AutoModel
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        return kind.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        ).eval()
    except Exception as error:  # whatever it is, it is theirs, and the answer to the question
        raise ModelError(
            f"transformers cannot open {folder}: {error}", "open it without --against"
        ) from None


def _outputs(theirs: Any, batch: Batch, model: kinds.Model) -> dict[str, Tensor]:
    """Theirs, under the names of `batch.outputs`."""
    given: dict[str, Any] = dict(batch.given)
    if isinstance(model, kinds.Decoder) and batch.padding_mask is not None and batch.front:
        given["position_ids"] = (batch.padding_mask.cumsum(1) - 1).clamp_min(
            0
        )  # theirs count padding in front, if not told
    with torch.inference_mode():
        out = theirs(**given)
    said = {name: value for name, value in out.items() if isinstance(value, Tensor)}
    if "start_logits" in said:
        said["logits"] = torch.stack([said["start_logits"], said["end_logits"]], dim=-1)
    if "sop_logits" in said:
        said["seq_relationship_logits"] = said["sop_logits"]
    return said
