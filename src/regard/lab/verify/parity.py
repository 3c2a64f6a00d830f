"""Parity: the same folder, opened here and by transformers, gives the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.families import folder as folders
from regard.lab.verify.invariants import Finding, OutputComparison
from regard.lab.verify.outputs import rounding_errors, run
from regard.lab.verify.random_inputs import RandomBatch, fixed_length, pad_token_id, random_batch
from regard.system.errors import ModelError, SettingError
from regard.wirings.core_model import CoreModel

NAME = "here = transformers"
TOLERANCE = 1e-5  # in float32, relative to the mean of what is compared, if that is above 1
# Families where angles, logarithms or long sums are rounded otherwise there.
TWICE_THE_TOLERANCE = {
    "deberta-v2",
    "whisper",
    "clip",
    "clip_text_model",
    "clip_vision_model",
    "siglip",
    "siglip_text_model",
    "siglip_vision_model",
    "wav2vec2",
    "hubert",
    "gemma",
    "reformer",
}


def parity(
    folder: str | Path, model: CoreModel, opened: folders.ModelFolder, seed: int = 0
) -> Finding:
    """Compares the main outputs for a padded random batch, in float32 on both sides.

    Outputs at padding are left out. Where the float32 of our own model is farther from its
    float64 than the tolerance, as much is allowed to the other library.
    """
    try:
        import transformers
    except ImportError:
        raise SettingError(
            "--against transformers needs the package transformers", "pip install transformers"
        ) from None
    if opened.model_type == "regard":
        raise ModelError(
            f"{folder} is in regard's own format, which transformers does not know",
            "remove --against",
        )
    theirs = _open(transformers, folder, opened)
    theirs.to(next(model.parameters()).device)
    batch = padded_batch(opened, seed).like(model)
    expected = _their_outputs(theirs, batch)
    actual = run(model, batch)
    pairs = [
        (name, output.without_padding, output._replace(value=expected[name]).without_padding)
        for name, output in actual.items()
        if name in expected
    ]
    if not pairs:
        raise ModelError(
            f"{type(theirs).__name__} has none of the outputs {', '.join(actual)}",
            "report this with its config.json",
        )
    return float32_comparison(model, batch, opened.model_type)(NAME, *pairs)


def padded_batch(opened: folders.ModelFolder, seed: int = 0) -> RandomBatch:
    """A random batch for the model of a folder, padded if its inputs differ in length."""
    pad = pad_token_id(opened.config)
    batch = random_batch(opened.spec, pad, seed)
    return batch if fixed_length(opened.spec) else batch.padded(pad)


def float32_comparison(model: CoreModel, batch: RandomBatch, family: str) -> OutputComparison:
    """The comparison with another library's float32."""
    tolerance = TOLERANCE
    if family in TWICE_THE_TOLERANCE:
        tolerance *= 2
    return OutputComparison(tolerance, rounding_errors(model, batch))


def _open(transformers: Any, folder: str | Path, opened: folders.ModelFolder) -> Any:
    """The model as the class that config.json names.

    Nothing is downloaded, and no code of the folder runs.
    """
    architectures = opened.config.get("architectures")
    if not architectures:
        config = folders.describe(opened.spec, model_type=opened.model_type)
        architectures = config["architectures"]
    model_class = getattr(transformers, str(architectures[0]), None) or transformers.AutoModel
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        model = model_class.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # whatever it is, it is theirs, and the answer to the question
        raise ModelError(
            f"transformers cannot load {folder}: {error}", "remove --against"
        ) from None
    for name in ("noise_scale", "noise_scale_duration"):
        if name in vars(model):  # nothing is drawn here either
            setattr(model, name, 0.0)
    return model.eval()


def _their_outputs(theirs: Any, batch: RandomBatch) -> dict[str, Tensor]:
    """The outputs of transformers, under the names that ours have."""
    inputs: dict[str, Any] = dict(batch.inputs)
    if batch.padding_mask is not None and batch.left_padding:
        # Without position ids, transformers counts the padding on the left as positions.
        inputs["position_ids"] = (batch.padding_mask.cumsum(1) - 1).clamp_min(0)  # [B, T]
    if "future_values" in inputs:
        return _their_series_outputs(theirs, inputs)
    with torch.inference_mode():
        result = theirs(**inputs)
    outputs = {name: value for name, value in result.items() if isinstance(value, Tensor)}
    if "sop_logits" in outputs:  # ALBERT's sentence order, where BERT has the next sentence
        outputs["seq_relationship_logits"] = outputs["sop_logits"]
    return outputs


def _their_series_outputs(theirs: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """The outputs of the time-series Transformer, which wants all arguments there are."""
    values = inputs["past_values"]
    rows, steps, channels = values.shape
    horizon = inputs["future_values"].shape[1]
    # Features of width 0 where the model reads none.
    inputs.setdefault("past_time_features", values.new_zeros(rows, steps, 0))
    inputs.setdefault("future_time_features", values.new_zeros(rows, horizon, 0))
    if channels == 1:
        names = ("past_values", "future_values")
        inputs |= {name: inputs[name].squeeze(-1) for name in names}
    inputs["past_observed_mask"] = torch.ones_like(inputs["past_values"])
    with torch.inference_mode():
        result = theirs(**inputs)
    outputs = {name: value for name, value in result.items() if isinstance(value, Tensor)}
    if "params" in result:
        shape = (rows, horizon, channels)
        outputs["params"] = torch.stack([one.reshape(shape) for one in result.params], dim=-1)
    return outputs
