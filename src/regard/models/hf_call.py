"""Models in Hugging Face's words: which arguments a model takes, and under which names its tensors come out.

What comes out depends on the architecture that config.json names, because one file may hold more than one of them uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard import spec as kinds
from regard.build import CoreModel
from regard.core.head import DistilledHead
from regard.errors import SettingError, did_you_mean
from regard.model import Decoder, DualEncoder, Encoder, EncoderDecoder, MemoryNetwork


class Output(dict[str, Any]):
    """Tensors by name, as attributes and by number too: `out.logits` is `out["logits"]`, `out[0]` the first."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this output has {', '.join(self)}, and no {name}") from None

    def __getitem__(self, name: str | int) -> Any:
        return list(self.values())[name] if isinstance(name, int) else super().__getitem__(name)


def arguments(description: kinds.Model) -> dict[str, bool]:
    """What a model may be called with, in the order of transformers, and whether it must be given."""
    match description:
        case kinds.DualEncoder():
            return {"input_ids": True, "pixel_values": True, "attention_mask": False}
        case kinds.MemoryNetwork():
            return {"story": True, "question": True, "story_mask": False, "question_mask": False}
        case kinds.EncoderDecoder(source=source) | kinds.SequenceToSequence(source=source):
            first = "input_features" if isinstance(source, kinds.Spectrogram) else "input_ids"
            return {
                first: True,
                "attention_mask": False,
                "decoder_input_ids": True,
                "decoder_attention_mask": False,
            }
        case kinds.Encoder(input=kinds.Patches()):
            return {"pixel_values": True}
        case kinds.Encoder(input=kinds.Waveform()):
            return {"input_values": True, "attention_mask": False}
        case kinds.Encoder():
            return {"input_ids": True, "attention_mask": False, "token_type_ids": False}
        case _:
            return {"input_ids": True, "attention_mask": False}


def named(
    description: kinds.Model, positional: tuple[Any, ...], by_name: Mapping[str, Any]
) -> dict[str, Tensor]:
    """The arguments of a call by name, those that are None left out. One that the model does not know is an error."""
    known = arguments(description)
    if len(positional) > len(known):
        raise SettingError(f"this model takes {len(known)} arguments", f"known: {', '.join(known)}")
    for name in by_name:
        if name not in known:
            raise SettingError(
                f"this model has no argument {name!r}",
                f"{did_you_mean(name, known)} (known: {', '.join(known)})",
            )
    given = {**dict(zip(known, positional, strict=False)), **by_name}
    given = {name: value for name, value in given.items() if value is not None}
    missing = [name for name, needed in known.items() if needed and name not in given]
    if missing:
        hint = (
            "give the target tokens, start token first"
            if missing[0].startswith("decoder")
            else "give it"
        )
        raise SettingError(f"this model needs {missing[0]}", hint)
    return given


def run(
    model: CoreModel,
    description: kinds.Model,
    config: Mapping[str, Any],
    given: Mapping[str, Tensor],
) -> Output:
    """The main tensors of a call, in the order of transformers."""
    match model:
        case Encoder():
            assert isinstance(description, kinds.Encoder)
            return _encoder(model, description, config, given)
        case Decoder():
            hidden, _ = model(given["input_ids"], padding_mask(given.get("attention_mask")))
            return Output(logits=model.head(hidden))
        case EncoderDecoder():
            return _encoder_decoder(model, given)
        case DualEncoder():
            return _pair(model, given)
        case MemoryNetwork():
            masks = [padding_mask(given.get(name)) for name in ("story_mask", "question_mask")]
            return Output(logits=model.head(model(given["story"], given["question"], *masks)[0]))


def padding_mask(mask: Tensor | None) -> Tensor | None:
    """Which positions are no padding; None where all are, which is faster."""
    if mask is None or bool(mask.all()):
        return None
    return mask.bool()


def _encoder(
    model: Encoder,
    description: kinds.Encoder,
    config: Mapping[str, Any],
    given: Mapping[str, Tensor],
) -> Output:
    inputs, mask = next(iter(given.values())), padding_mask(given.get("attention_mask"))
    if mask is None and description.pool is not None and description.pool.which == "last":
        # Which token is the last one of a text, transformers sees by what fills the rows.
        fills = config.get("pad_token_id")
        mask = None if fills is None else padding_mask(inputs != fills)
    beside = {"segments": given["token_type_ids"]} if "token_type_ids" in given else {}
    hidden, _ = model(inputs, mask, **beside)
    architecture = str((config.get("architectures") or [""])[0])
    if architecture.endswith(("Model", "WithProjection")) or (
        model.head is None and model.labels is None
    ):
        return _bare(model, description, hidden, model.input.places(mask), inputs)
    if isinstance(description.labels, kinds.ClassifierHead) and description.labels.task == "next":
        return _pretraining(model, architecture, hidden, mask, inputs)
    if model.labels is None:
        assert model.head is not None
        return Output(logits=model.head(hidden))
    scores = model.classes(hidden, mask, inputs)
    if isinstance(model.labels, DistilledHead):
        voices = model.labels.each(hidden)
        return Output(logits=scores, cls_logits=voices[:, 0], distillation_logits=voices[:, 1])
    match description.labels:
        case kinds.ClassifierHead(task="answer"):
            return Output(start_logits=scores[..., 0], end_logits=scores[..., 1])
        case kinds.ClassifierHead(task="detect"):
            return Output(logits=scores[..., 0])
        case _:
            return Output(logits=scores)


def _bare(
    model: Encoder,
    description: kinds.Encoder,
    hidden: Tensor,
    places: Tensor | None,
    inputs: Tensor,
) -> Output:
    if model.pool is None or description.pool is None:
        return Output(last_hidden_state=hidden)
    vector = model.pool(hidden, places, inputs)
    if description.pool.width is None:
        return Output(last_hidden_state=hidden, pooler_output=vector)
    name = "image_embeds" if isinstance(description.input, kinds.Patches) else "text_embeds"
    return Output({name: vector, "last_hidden_state": hidden})


def _pretraining(
    model: Encoder, architecture: str, hidden: Tensor, mask: Tensor | None, inputs: Tensor
) -> Output:
    """A vocabulary, whether one text follows another, or both."""
    if model.head is not None and architecture.endswith("ForMaskedLM"):
        return Output(logits=model.head(hidden))
    pairs = model.classes(hidden, mask, inputs)
    if model.head is None or architecture.endswith("ForNextSentencePrediction"):
        return Output(logits=pairs)
    name = "sop_logits" if architecture.startswith("Albert") else "seq_relationship_logits"
    return Output({"prediction_logits": model.head(hidden), name: pairs})


def _encoder_decoder(model: EncoderDecoder, given: Mapping[str, Tensor]) -> Output:
    target = given.get("decoder_attention_mask")
    if target is not None and bool((target[:, 1:] > target[:, :-1]).any()):
        raise SettingError(
            "decoder_attention_mask has padding in front of tokens", "pad the targets behind"
        )
    # Padding behind targets is seen by nothing before it. A spectrogram is heard whole, silence too, as it was in training.
    mask = None if "input_features" in given else padding_mask(given.get("attention_mask"))
    encoded = model.encode(next(iter(given.values())), mask)
    logits = model.head(model.decode(given["decoder_input_ids"], encoded))
    return Output(logits=logits, encoder_last_hidden_state=encoded.memory)


def _pair(model: DualEncoder, given: Mapping[str, Tensor]) -> Output:
    texts = model.texts(given["input_ids"], padding_mask(given.get("attention_mask")))
    images = model.images(given["pixel_values"])
    scores = texts @ images.mT * model.scale.exp()
    return Output(
        logits_per_image=scores.mT, logits_per_text=scores, text_embeds=texts, image_embeds=images
    )
