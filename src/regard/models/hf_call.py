"""The call convention of transformers: argument names of a model, and names of its output tensors.

Which tensors come out depends on the architecture that config.json names, because one file of
weights may hold more heads than that architecture uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec as kinds
from regard.baselines.linear_forecaster import LinearForecaster
from regard.baselines.memory_network import MemoryNetwork
from regard.core.context import Context
from regard.core.head import DistilledHead, question_ends
from regard.core.patch_embedding import Patches
from regard.core.pixel_decoder import PixelShuffleHead
from regard.core.series_patches import SeriesPatches
from regard.core_model import CoreModel
from regard.data.padding import IGNORED
from regard.decoder import Decoder
from regard.dual_encoder import DualEncoder
from regard.encoder import Encoder
from regard.encoder_decoder import EncoderDecoder
from regard.errors import ModelError, SettingError, did_you_mean
from regard.families import folder as folders
from regard.models.recorded_outputs import RecordedOutputs
from regard.models.series_call import (
    call_series,
    call_series_encoder_decoder,
    channel_outputs,
)
from regard.series_encoder_decoder import SeriesEncoderDecoder

# Arguments of a call that are no inputs.
OUTPUT_OPTIONS = ("output_hidden_states", "output_attentions")
EncoderSpec = kinds.Encoder | kinds.RecurrentEncoder
_MASKED_PIXELS_EPS = 1e-5


class ModelOutput(dict[str, Any]):
    """Output tensors by name, by attribute and by number, like transformers' `ModelOutput`.

    `out.logits` is `out["logits"]`, and `out[0]` the first tensor.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this output has no {name}, only {', '.join(self)}") from None

    def __getitem__(self, name: str | int) -> Any:
        if isinstance(name, int):
            # Insertion order is that of transformers: loss first if there is one, then logits.
            return list(self.values())[name]
        return super().__getitem__(name)

    def __repr__(self) -> str:
        """The shape and dtype of each tensor; the numbers would fill pages."""
        parts = []
        for name, value in self.items():
            text = repr(value)
            if isinstance(value, Tensor):
                text = f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
            parts.append(f"{name}: {text}")
        return f"ModelOutput({', '.join(parts)})"


def bind_arguments(
    spec: kinds.Model, positional: tuple[Any, ...], keywords: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The tensors of a call by argument name; those that are None are left out.

    An argument that the model does not take is an error.
    """
    required = [one.name for one in spec.inputs]
    if len(positional) > len(required):
        raise SettingError(
            f"this model takes {len(required)} arguments",
            f"pass at most these: {', '.join(required)}",
        )
    for name in keywords:
        if name not in required:
            raise SettingError(
                f"this model has no argument {name!r}",
                f"{did_you_mean(name, required)} (known: {', '.join(required)})",
            )
    arguments = dict(zip(required, positional, strict=False)) | dict(keywords)
    # In the model's order, whatever the order of the keywords: the first one is the main input.
    tensors = {name: arguments[name] for name in required if arguments.get(name) is not None}
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise SettingError(
                f"{name} is not a tensor but {type(value).__name__}",
                _tensor_repair(spec, name),
            )
    return tensors


def _tensor_repair(spec: kinds.Model, name: str) -> str:
    """How the tensor of an argument is made."""
    if name == "pixel_values":
        return "pass a tensor, such as `model.image_processor.batch(images)`"
    if spec.main_input_name in ("input_ids", "story"):
        return "pass tensors, as in `model(**model.tokens(texts))`"
    return "pass a tensor, such as `torch.as_tensor(values)`"


def call(
    model: CoreModel,
    spec: kinds.Model,
    config: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    *,
    output_hidden_states: bool = False,
    output_attentions: bool = False,
) -> ModelOutput:
    """Runs a model on named inputs; the main output tensors, in the order of transformers."""
    recorded = RecordedOutputs.of(model, output_hidden_states, output_attentions)
    match model:
        case Encoder(input=SeriesPatches(channels=channels)):
            assert isinstance(spec, kinds.Encoder)
            series_output = call_series(model, spec, inputs, Context(recorded.probe))
            return ModelOutput(series_output | channel_outputs(recorded, channels))
        case SeriesEncoderDecoder():
            assert isinstance(spec, kinds.SeriesEncoderDecoder)
            return ModelOutput(call_series_encoder_decoder(model, spec, inputs, recorded))
        case LinearForecaster():
            # DLinear and NLinear have no hidden states: the forward pass is the forecast.
            forecasts, _ = model(inputs["past_values"])
            return ModelOutput(prediction_outputs=forecasts)
        case Encoder() if model.contrastive is not None:
            output = _call_contrastive(model, inputs, Context(recorded.probe))
            return ModelOutput(output | recorded.of_encoder())
        case Encoder(pixels=PixelShuffleHead()):
            output = _call_mask_tokens(model, inputs, Context(recorded.probe))
            return ModelOutput(output | recorded.of_encoder())
        case Encoder(input=Patches(masked_share=share)) if share or model.pixels is not None:
            output = _call_masked_images(model, inputs, Context(recorded.probe))
            return ModelOutput(output | recorded.of_encoder())
        case Encoder():
            assert isinstance(spec, EncoderSpec)
            global_tokens = _global_tokens(spec, inputs)
            context = Context(recorded.probe, global_tokens=global_tokens)
            output = _call_encoder(model, spec, config, inputs, context)
            return ModelOutput(output | recorded.of_encoder())
        case Decoder():
            output = _call_decoder(model, config, inputs, Context(recorded.probe))
            return ModelOutput(output | recorded.of_stack("decoder"))
        case EncoderDecoder():
            return _call_encoder_decoder(model, config, inputs, recorded)
        case DualEncoder():
            return _call_dual_encoder(model, inputs, recorded)
        case _:
            assert isinstance(model, MemoryNetwork)
            story_mask = padding_mask(inputs.get("story_mask"))
            question_mask = padding_mask(inputs.get("question_mask"))
            story = inputs["story"]
            question = inputs["question"]
            context = Context(recorded.probe)
            hidden, _ = model(story, question, story_mask, question_mask, context)
            hops = recorded.of_stack("memory") | recorded.cross_attentions("memory")
            return ModelOutput(logits=model.head(hidden), **hops)


def _call_decoder(
    model: Decoder, config: Mapping[str, Any], inputs: Mapping[str, Tensor], context: Context
) -> ModelOutput:
    """Logits; before them the hidden states, if that is what the architecture gives (GPT2Model)."""
    mask = padding_mask(inputs.get("attention_mask"))
    hidden, _ = model(inputs["input_ids"], mask, context)  # [B, T, D]
    logits = model.head(hidden)
    architecture = str((config.get("architectures") or [""])[0])
    if architecture.endswith("Model") and not architecture.endswith("HeadModel"):
        return ModelOutput(last_hidden_state=hidden, logits=logits)
    return ModelOutput(logits=logits)


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """Hugging Face's attention mask (1 = token, 0 = padding) as booleans.

    None where nothing is padded: attention then takes the faster path without a mask.
    """
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask.bool()


# ------------------------------------------------------------------ encoders


def _call_encoder(
    model: Encoder,
    spec: EncoderSpec,
    config: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    context: Context,
) -> ModelOutput:
    main_input = next(iter(inputs.values()))  # ids, pixels or samples: always the first argument
    mask = padding_mask(inputs.get("attention_mask"))
    pools_last_token = spec.pool is not None and spec.pool.which == "last"
    pad_token_id = config.get("pad_token_id")
    if mask is None and pools_last_token and pad_token_id is not None:
        # transformers finds the last token of a text by the padding id, even without a mask.
        mask = padding_mask(main_input != pad_token_id)
    graph = ("edges", "eigenvectors", "distances")
    options = {name: inputs[name] for name in graph if name in inputs}
    if "bool_masked_pos" in inputs:
        options["masked"] = inputs["bool_masked_pos"].bool()
    if "token_type_ids" in inputs:
        options["segments"] = inputs["token_type_ids"]
    elif spec.labels is not None and spec.labels.excludes is not None:
        options["segments"] = _question_segments(spec, spec.labels.excludes.separator, main_input)
    hidden, _ = model(main_input, mask, context, **options)  # [B, T, D]
    # config.json lists one architecture: the class that the weights were saved from.
    architecture = str((config.get("architectures") or [""])[0])
    without_head = model.head is None and model.labels is None
    if without_head or architecture.endswith(("Model", "WithProjection")):
        return _hidden_state_output(
            model, spec, hidden, model.input.output_padding_mask(mask), main_input
        )
    if spec.task == "next":
        return _pretraining_output(model, architecture, hidden, mask, main_input)
    if model.labels is None:
        assert model.head is not None
        return ModelOutput(logits=model.head(hidden))
    return _classifier_output(model, spec, hidden, mask, main_input)


def _global_tokens(spec: EncoderSpec, inputs: Mapping[str, Tensor]) -> Tensor | None:
    """Longformer's global tokens [B, T]; None where the model is to choose them, or has none."""
    if isinstance(spec, kinds.RecurrentEncoder):
        return None
    if "global_attention_mask" in inputs:
        return inputs["global_attention_mask"].bool()
    default = spec.stack.block.attention.global_tokens
    if isinstance(default, kinds.QuestionTokens):
        has_separator = (inputs["input_ids"] == default.separator).any(dim=1)
        if not bool(has_separator.all()):
            raise SettingError(
                f"a row of input_ids has no separator ({default.separator}) after its question",
                "add the special tokens of question and context, or pass global_attention_mask",
            )
    return None


def _classifier_output(
    model: Encoder, spec: EncoderSpec, hidden: Tensor, mask: Tensor | None, inputs: Tensor
) -> ModelOutput:
    """Logits of a task head: per text, or per token for tagging, answers and detection."""
    logits = model.classes(hidden, mask, inputs)
    if isinstance(model.labels, DistilledHead):
        # DeiT: one classifier on the class token, one on the distillation token, and their mean.
        both = model.labels.each(hidden)  # [B, 2, labels]
        return ModelOutput(logits=logits, cls_logits=both[:, 0], distillation_logits=both[:, 1])
    if spec.task == "answer":
        # [B, T, 2]: two scores for each token
        return ModelOutput(start_logits=logits[..., 0], end_logits=logits[..., 1])
    if spec.task == "detect":
        return ModelOutput(logits=logits[..., 0])  # [B, T]: ELECTRA has one score a token
    return ModelOutput(logits=logits)


def _call_contrastive(
    model: Encoder, inputs: Mapping[str, Tensor], context: Context
) -> ModelOutput:
    """wav2vec 2.0's pre-training: both sides, and the losses where negatives are given."""
    assert model.contrastive is not None
    mask = padding_mask(inputs.get("attention_mask"))
    masked = inputs.get("mask_time_indices")
    if masked is not None:
        masked = masked.bool()
    both = model.contrast(inputs["input_values"], mask, context, masked)
    output = ModelOutput(
        projected_states=both.states,
        projected_quantized_states=both.targets,
        codevector_perplexity=both.perplexity,
    )
    if "sampled_negative_indices" not in inputs:
        return output
    if masked is None:
        raise SettingError(
            "sampled_negative_indices needs mask_time_indices", "pass mask_time_indices"
        )
    negatives = inputs["sampled_negative_indices"].long()
    contrastive, diversity = model.contrastive.losses(both, masked, negatives)
    loss = contrastive + model.contrastive.diversity * diversity
    losses = {"contrastive_loss": contrastive, "diversity_loss": diversity}
    return ModelOutput({"loss": loss, **output, **losses})


def _question_segments(spec: EncoderSpec, separator: int, tokens: Tensor) -> Tensor:
    """BigBird: a question is segment 0, its context segment 1, unless the caller says otherwise."""
    if isinstance(spec, kinds.Encoder) and spec.tokens.segments < 2:
        raise ModelError(
            "type_vocab_size is 1, so the model cannot tell question and context apart",
            "pass token_type_ids",
        )
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return (positions > question_ends(tokens, separator)).long()  # [B, T]


def _call_masked_images(
    model: Encoder, inputs: Mapping[str, Tensor], context: Context
) -> ModelOutput:
    """MAE's pre-training: patches are hidden in every call, by noise that is drawn if not given."""
    front = model.input
    assert isinstance(front, Patches)
    pixels = inputs["pixel_values"]
    noise = inputs.get("noise")
    if noise is None:
        noise = torch.rand(len(pixels), front.side**2, device=pixels.device)
    order = front.random_masking(noise)
    if model.pixels is None:
        hidden, _ = model(pixels, None, context, visible=order.visible)
        output = ModelOutput(last_hidden_state=hidden)
    else:
        predicted = model.reconstruct(pixels, order, context)
        error = model.pixels.error(predicted, front.unfold(pixels), order.masked)
        output = ModelOutput(loss=error.sum() / order.masked.sum(), logits=predicted)
    masks = {"mask": order.masked.to(pixels.dtype), "ids_restore": order.restore}
    return ModelOutput(output | masks)


def _call_mask_tokens(
    model: Encoder, inputs: Mapping[str, Tensor], context: Context
) -> ModelOutput:
    """SimMIM's pre-training: the image, and the loss of its masked patches where some are."""
    front = model.input
    assert isinstance(front, Patches)
    assert isinstance(model.pixels, PixelShuffleHead)
    pixels = inputs["pixel_values"]
    if "bool_masked_pos" not in inputs:
        hidden, _ = model(pixels, None, context)
        return ModelOutput(reconstruction=model.pixels.image(hidden))
    masked = inputs["bool_masked_pos"].bool()
    hidden, _ = model(pixels, None, context, masked=masked)
    error = model.pixels.error(model.pixels(hidden), front.unfold(pixels), masked)  # [B, N]
    # In transformers a small number is added to the masked pixels, which may be none.
    count = masked.sum() + _MASKED_PIXELS_EPS / front.patch**2
    return ModelOutput(loss=error.sum() / count, reconstruction=model.pixels.image(hidden))


def _hidden_state_output(
    model: Encoder, spec: EncoderSpec, hidden: Tensor, mask: Tensor | None, inputs: Tensor
) -> ModelOutput:
    """The output of an encoder without a head: hidden states, and the pooled vector."""
    if model.pool is None or spec.pool is None:
        return ModelOutput(last_hidden_state=hidden)
    vector = model.pool(hidden, mask, inputs)  # [B, D]
    if spec.pool.width is None or spec.pool.bias:
        return ModelOutput(last_hidden_state=hidden, pooler_output=vector)
    # A projection to the shared space, which has no bias, makes it one tower of CLIP.
    name = "image_embeds" if spec.main_input_name == "pixel_values" else "text_embeds"
    return ModelOutput({name: vector, "last_hidden_state": hidden})


def _pretraining_output(
    model: Encoder, architecture: str, hidden: Tensor, mask: Tensor | None, inputs: Tensor
) -> ModelOutput:
    """The heads of BERT's pre-training: masked tokens, next sentence, or both."""
    if model.head is not None and architecture.endswith("ForMaskedLM"):
        return ModelOutput(logits=model.head(hidden))
    sentence_logits = model.classes(hidden, mask, inputs)
    if model.head is None or architecture.endswith("ForNextSentencePrediction"):
        return ModelOutput(logits=sentence_logits)
    # ALBERT predicts the order of two sentences, and its output has a name of its own.
    name = "sop_logits" if architecture.startswith("Albert") else "seq_relationship_logits"
    return ModelOutput({"prediction_logits": model.head(hidden), name: sentence_logits})


# ------------------------------------------------------------------ two towers or stacks


def _call_encoder_decoder(
    model: EncoderDecoder,
    config: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    recorded: RecordedOutputs,
) -> ModelOutput:
    target_mask = inputs.get("decoder_attention_mask")
    if target_mask is not None and bool((target_mask[:, 1:] > target_mask[:, :-1]).any()):
        raise SettingError(
            "decoder_attention_mask has padding on the left", "pad the targets on the right"
        )
    # Padding behind the targets needs no mask: the causal mask hides it from all tokens before.
    # Whisper attends to its spectrogram as a whole, silence included, as it did in training.
    source_mask = None
    if "input_features" not in inputs:
        source_mask = padding_mask(inputs.get("attention_mask"))
    context = Context(recorded.probe)
    source = next(iter(inputs.values()))
    encoded = model.encode(source, source_mask, context)
    target = inputs.get("decoder_input_ids")
    if target is None:  # a classifier's decoder reads the source again
        target = shift_right(source, folders.start_token_id(config))
    hidden = model.decode(target, encoded, context)  # [B, T, D]
    if model.labels is None:
        logits = model.head(hidden)  # [B, T, V]
    else:
        _check_end_token(model, source)
        logits = model.classes(hidden, inputs=source)  # [B, labels]
    loss = {}
    if "labels" in inputs:
        # Labels of -100 are padding. The loss is a mean over all others.
        labels = inputs["labels"].flatten().long()
        loss["loss"] = functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=IGNORED)
    return ModelOutput(
        **loss,
        logits=logits,
        **recorded.of_stack("decoder", "decoder_"),
        **recorded.cross_attentions("decoder"),
        encoder_last_hidden_state=encoded.hidden,
        **recorded.of_stack("encoder", "encoder_"),
    )


def shift_right(ids: Tensor, start: int) -> Tensor:
    """Ids [B, T] behind the start token, without the last of them: what a decoder reads."""
    return functional.pad(ids[:, :-1], (1, 0), value=start)


def _check_end_token(model: EncoderDecoder, ids: Tensor) -> None:
    """Refuses rows without the end token at which a classifier reads its labels."""
    end = model.pool.end if model.pool is not None else None
    if end is not None and not bool((ids == end).any(dim=1).all()):
        raise SettingError(
            f"a row of input_ids has no end token ({end}), where the class is predicted",
            "end each row of input_ids with it",
        )


def _call_dual_encoder(
    model: DualEncoder, inputs: Mapping[str, Tensor], recorded: RecordedOutputs
) -> ModelOutput:
    context = Context(recorded.probe)
    mask = padding_mask(inputs.get("attention_mask"))
    texts = model.texts(inputs["input_ids"], mask, context)  # [N, D]
    images = model.images(inputs["pixel_values"], context)  # [M, D]
    logits = model.logits(texts, images)  # [N, M]
    output = ModelOutput(
        logits_per_image=logits.mT, logits_per_text=logits, text_embeds=texts, image_embeds=images
    )
    # transformers gives the towers' own outputs as well; here, if something of them is asked for.
    for name, stack in (("text", "text.encoder"), ("vision", "image.encoder")):
        if recorded.probe.active:
            output[f"{name}_model_output"] = ModelOutput(recorded.of_encoder(stack))
    return output
