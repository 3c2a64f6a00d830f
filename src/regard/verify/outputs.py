"""One way to run a model of any architecture: main outputs under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.baselines.linear_forecaster import LinearForecaster
from regard.baselines.memory_network import MemoryNetwork
from regard.core.head import DistilledHead
from regard.core.lagged_values import Covariates
from regard.core.patch_embedding import Patches
from regard.core.pixel_decoder import PixelDecoder, PixelShuffleHead
from regard.core.series_head import ChannelHead, ForecastHead
from regard.core.series_patches import SeriesPatches
from regard.core.waveform_frontend import Waveform
from regard.core_model import CoreModel
from regard.decoder import Decoder
from regard.dual_encoder import DualEncoder
from regard.encoder import Encoder
from regard.encoder_decoder import EncoderDecoder
from regard.series_encoder_decoder import SeriesEncoderDecoder
from regard.verify.random_inputs import RandomBatch


class MaskedOutput(NamedTuple):
    """An output tensor, with a padding mask where it has one value for each position."""

    tensor: Tensor
    padding_mask: Tensor | None = None

    def row(self, i: int) -> Tensor:
        """What belongs to row i of the batch, without its padding."""
        if self.padding_mask is None:
            return self.tensor[i]
        return self.tensor[i][self.padding_mask[i]]

    @property
    def without_padding(self) -> Tensor:
        """The values of all rows, without those at padding."""
        if self.padding_mask is None:
            return self.tensor
        return self.tensor[self.padding_mask]  # [tokens, ...]


@torch.inference_mode()
def run(model: CoreModel, batch: RandomBatch) -> dict[str, MaskedOutput]:
    """The main outputs of a model for a batch, without gradients."""
    return forward(model, batch.like(model).inputs)


def rounding_errors(model: CoreModel, batch: RandomBatch) -> dict[str, float]:
    """How far each output in float32 is from that in float64.

    The float32 of another library cannot be expected to come closer to ours than that.
    """
    single = run(model, batch)
    double = run(model.double(), batch)
    model.float()
    errors = {}
    for name in single:
        difference = single[name].without_padding - double[name].without_padding
        errors[name] = difference.abs().max().item()
    return errors


def forward(model: CoreModel, inputs: Mapping[str, Tensor]) -> dict[str, MaskedOutput]:
    """The main outputs of a model, for inputs under the names of Hugging Face's arguments."""
    padding_mask = None
    if "attention_mask" in inputs:
        padding_mask = inputs["attention_mask"].bool()  # [B, T]
    match model:
        case EncoderDecoder():
            return _encoder_decoder(model, inputs, padding_mask)
        case Decoder():
            hidden, _ = model(inputs["input_ids"], padding_mask)  # [B, T, D]
            return {
                "logits": MaskedOutput(model.head(hidden), padding_mask),
                "last_hidden_state": MaskedOutput(hidden, padding_mask),
            }
        case DualEncoder():
            texts = model.texts(inputs["input_ids"], padding_mask)  # [texts, D]
            images = model.images(inputs["pixel_values"])  # [images, D]
            return {
                "logits_per_text": MaskedOutput(model.logits(texts, images)),
                "text_embeds": MaskedOutput(texts),
                "image_embeds": MaskedOutput(images),
            }
        case SeriesEncoderDecoder():
            return _series_encoder_decoder(model, inputs)
        case LinearForecaster():
            return {"prediction_outputs": MaskedOutput(model(inputs["past_values"])[0])}
        case Encoder(input=SeriesPatches()):
            return _series(model, inputs["past_values"])
        case Encoder():
            return _encoder(model, inputs, padding_mask)
        case _:
            assert isinstance(model, MemoryNetwork)
            story = inputs["story"]  # [B, sentences, words]
            mask = None
            if padding_mask is not None:
                mask = padding_mask[..., None].expand_as(story)
            hidden, _ = model(story, inputs["question"], mask)
            return {"logits": MaskedOutput(model.head(hidden))}


def _encoder_decoder(
    model: EncoderDecoder, inputs: Mapping[str, Tensor], padding_mask: Tensor | None
) -> dict[str, MaskedOutput]:
    source = _main_input(inputs)
    encoded = model.encode(source, padding_mask)
    target = inputs["decoder_input_ids"]
    if model.labels is not None:  # its decoder reads as many tokens as its encoder
        target = target[:, : source.shape[1]]
    hidden = model.decode(target, encoded)  # [B, T, D]
    if model.labels is None:
        logits = model.head(hidden)  # [B, T, V]
    else:
        logits = model.classes(hidden, inputs=source)  # [B, labels]
    return {
        "logits": MaskedOutput(logits),
        "encoder_last_hidden_state": MaskedOutput(encoded.hidden, encoded.padding_mask),
    }


def _series_encoder_decoder(
    model: SeriesEncoderDecoder, inputs: Mapping[str, Tensor]
) -> dict[str, MaskedOutput]:
    """The hidden states of both sides, and the parameters of each step's distribution."""
    covariates = series_covariates(inputs)
    values = inputs["past_values"]
    encoded = model.encode(values, None, covariates)
    hidden = model.decode(inputs["future_values"], encoded, covariates)
    outputs = {
        "last_hidden_state": MaskedOutput(hidden),
        "encoder_last_hidden_state": MaskedOutput(encoded.memory.hidden),
    }
    if model.series is not None:
        parameters = model.predict(hidden, values)
        outputs["params"] = MaskedOutput(torch.stack(parameters, dim=-1))
    return outputs


def series_covariates(inputs: Mapping[str, Tensor]) -> Covariates:
    """The features of a random series."""
    return Covariates(
        inputs.get("static_categorical_features"),
        inputs.get("static_real_features"),
        inputs.get("past_time_features"),
        inputs.get("future_time_features"),
    )


def _series(model: Encoder, values: Tensor) -> dict[str, MaskedOutput]:
    """The hidden states of each channel, and what the head makes of them."""
    hidden, _ = model(values)  # [B·C, N, D]
    by_channel = hidden.unflatten(0, (len(values), -1))
    # PatchTST for pre-training draws its masks: here and there they would differ.
    if not isinstance(model.series, ForecastHead | ChannelHead):
        return {"last_hidden_state": MaskedOutput(by_channel)}
    predicted = model.predict(hidden, values)
    name = "prediction_outputs"
    if isinstance(model.series, ChannelHead):
        name = "prediction_logits"
    # Of a distribution, the first parameter is compared: all come from one hidden state.
    first = predicted if isinstance(predicted, Tensor) else predicted[0]
    return {name: MaskedOutput(first), "last_hidden_state": MaskedOutput(by_channel)}


def _encoder(
    model: Encoder, inputs: Mapping[str, Tensor], padding_mask: Tensor | None
) -> dict[str, MaskedOutput]:
    main = _main_input(inputs)
    graph = ("edges", "eigenvectors", "distances")
    segments = {name: inputs[name] for name in graph if name in inputs}
    order = None
    if "noise" in inputs:
        assert isinstance(model.input, Patches)
        order = model.input.random_masking(inputs["noise"])
        segments["visible"] = order.visible
    if "bool_masked_pos" in inputs:
        segments["masked"] = inputs["bool_masked_pos"]
    if "token_type_ids" in inputs:
        segments["segments"] = inputs["token_type_ids"]
    hidden, _ = model(main, padding_mask, **segments)  # [B, T, D]
    # Positions are not always those of the input: convolutions shorten sound.
    position_mask = model.input.output_padding_mask(padding_mask)
    outputs = {"last_hidden_state": MaskedOutput(hidden, position_mask)}
    if model.contrastive is not None:
        assert isinstance(model.input, Waveform)
        both = model.contrastive(hidden, model.input.latents(main))
        outputs["projected_states"] = MaskedOutput(both.states, position_mask)
    if isinstance(model.pixels, PixelShuffleHead):
        outputs["reconstruction"] = MaskedOutput(model.pixels.image(hidden))
    if isinstance(model.pixels, PixelDecoder) and order is not None:
        outputs["logits"] = MaskedOutput(model.pixels(hidden, order))
    if model.pool is not None:
        name = "pooler_output"
        project = model.pool.project
        if project is not None and project.bias is None:  # one tower of CLIP
            name = "text_embeds" if "input_ids" in inputs else "image_embeds"
        outputs[name] = MaskedOutput(model.pool(hidden, position_mask, main))
    if model.head is not None:
        # BERT for pre-training has two heads, of which Hugging Face calls this one so.
        name = "logits" if model.labels is None else "prediction_logits"
        outputs[name] = MaskedOutput(model.head(hidden), position_mask)
    if model.labels is not None:
        name = "logits" if model.head is None else "seq_relationship_logits"
        for_each_token = not isinstance(model.labels, DistilledHead) and model.labels.per_token
        scores = model.classes(hidden, padding_mask, main)
        outputs[name] = MaskedOutput(scores, position_mask if for_each_token else None)
    return outputs


def _main_input(inputs: Mapping[str, Tensor]) -> Tensor:
    names = ("input_ids", "input_features", "pixel_values", "input_values", "node_features")
    return next(inputs[name] for name in names if name in inputs)
