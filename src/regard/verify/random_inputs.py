"""Random inputs for any wiring, under Hugging Face's names, and one way to run all of them. No tokenizer is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import spec as kinds
from regard.baselines.memory_network import MemoryNetwork
from regard.build import CoreModel
from regard.core.head import DistilledHead
from regard.errors import ModelError
from regard.model import (
    Decoder,
    DualEncoder,
    Encoder,
    EncoderDecoder,
)

LENGTHS = (
    14,
    9,
    5,
)  # of the rows of a padded batch; positions that a model does not have are not asked for


@dataclass(frozen=True)
class Batch:
    """`given` are the arguments; `main` names the one whose rows may be padded, `lengths` says how long they are then."""

    given: dict[str, Tensor]
    main: str
    lengths: tuple[int, ...]
    front: bool  # padding stands before the shorter rows, as a language model needs it

    @property
    def padding_mask(self) -> Tensor | None:
        return self.given.get("attention_mask")

    def like(self, model: CoreModel) -> Batch:
        """On the model's device, and what is not tokens in its precision."""
        some = next(model.parameters())
        given = {
            name: t.to(some) if t.is_floating_point() else t.to(some.device)
            for name, t in self.given.items()
        }
        return replace(self, given=given)

    def padded(self, pad: int) -> Batch:
        """The same rows, of which the shorter ones end early (or begin late)."""
        whole = self.given[self.main]
        places = torch.arange(whole.shape[1], device=whole.device)
        lengths = torch.tensor(self.lengths, device=whole.device)[:, None]
        padding_mask = places >= whole.shape[1] - lengths if self.front else places < lengths
        hidden = ~padding_mask.view(*padding_mask.shape, *[1] * (whole.ndim - 2))
        given = {
            **self.given,
            self.main: whole.masked_fill(hidden, pad),
            "attention_mask": padding_mask.long(),
        }
        return replace(self, given=given)

    def alone(self, row: int) -> Batch:
        """One row, without its padding."""
        given = {
            name: tensor[row : row + 1]
            for name, tensor in self.given.items()
            if name != "attention_mask"
        }
        if self.padding_mask is not None:
            keep = self.padding_mask[row].bool()
            ragged = [self.main, "token_type_ids"]
            given |= {name: given[name][:, keep] for name in ragged if name in given}
        return replace(self, given=given, lengths=self.lengths[row : row + 1])


class Found(NamedTuple):
    """An output, and where it is real if it has one value for each position of a padded input."""

    tensor: Tensor
    padding_mask: Tensor | None = None

    def row(self, i: int) -> Tensor:
        return self.tensor[i] if self.padding_mask is None else self.tensor[i][self.padding_mask[i]]

    @property
    def seen(self) -> Tensor:
        return self.tensor if self.padding_mask is None else self.tensor[self.padding_mask]


def padding(config: Mapping[str, Any]) -> int:
    """The id that stands for nothing; random tokens avoid it, because some models count positions by it."""
    nested = config.get("text_config")
    pad = config.get(
        "pad_token_id", nested.get("pad_token_id") if isinstance(nested, dict) else None
    )
    return pad if isinstance(pad, int) and pad >= 0 else 0


def front_end(model: kinds.Model) -> kinds.FrontEnd:
    """What a model reads; of a pair, the texts."""
    match model:
        case kinds.EncoderDecoder() | kinds.SequenceToSequence():
            return model.source
        case kinds.Encoder():
            return model.input
        case kinds.Decoder() | kinds.RecurrentDecoder():
            return model.tokens
        case kinds.DualEncoder():
            return front_end(model.text)
        case kinds.MemoryNetwork():
            raise ModelError(
                "a memory network reads stories, not one text", "write it with --to regard"
            )


# ------------------------------------------------------------------ inputs


def random_batch(model: kinds.Model, pad: int = 0, seed: int = 0) -> Batch:
    """Three rows of full length; `Batch.padded` makes them ragged."""
    chance = torch.Generator().manual_seed(seed)
    match model:
        case kinds.EncoderDecoder() | kinds.SequenceToSequence():
            lengths = _lengths(_longest(model.target.position))
            made = _front(model.source, model.encoder, pad, chance)
            # Of another length than sources are, so that no place for the one has room for the other.
            targets = _tokens(model.target.vocabulary, max(1, lengths[0] - 3), pad, chance)
            return replace(made, given={**made.given, "decoder_input_ids": targets})
        case kinds.Decoder() | kinds.RecurrentDecoder():
            # On a ring it is as good, and only there do others count places by themselves.
            front = not (isinstance(model.stack, kinds.Stack) and model.stack.rings)
            return replace(_front(model.tokens, model.stack, pad, chance), front=front)
        case kinds.DualEncoder(text, image):
            made = random_batch(text, pad, seed)
            return replace(made, given={**made.given, **random_batch(image, pad, seed).given})
        case kinds.MemoryNetwork():
            count = min(LENGTHS[0], model.sentences)
            story = torch.randint(0, model.vocabulary, (3, count, 6), generator=chance)
            question = torch.randint(0, model.vocabulary, (3, 4), generator=chance)
            return Batch(
                {"story": story, "question": question}, "story", _lengths(count), front=False
            )
        case kinds.Encoder():
            made = _front(model.input, model.stack, pad, chance)
            end = model.pool.which if model.pool else None
            return (
                _ended(made, end, model.tokens.vocabulary)
                if isinstance(end, kinds.EndToken)
                else made
            )


def _front(
    part: kinds.FrontEnd,
    stack: kinds.Stack | kinds.Recurrent | kinds.Convolutional,
    pad: int,
    chance: torch.Generator,
) -> Batch:
    match part:
        case kinds.Tokens():
            pattern = stack.pattern if isinstance(stack, kinds.Stack) else None
            window = pattern.window if isinstance(pattern, kinds.CausalMask) else None
            lengths = _lengths(_longest(part.position), window)
            given = {"input_ids": _tokens(part.vocabulary, lengths[0], pad, chance)}
            if part.segments > 1:
                given["token_type_ids"] = torch.randint(
                    0, part.segments, (3, lengths[0]), generator=chance
                )
            return Batch(given, "input_ids", lengths, front=False)
        case kinds.Spectrogram():
            length = 2 * (_longest(part.position) or 20)
            features = torch.randn(3, part.mels, length, generator=chance)
            return Batch({"input_features": features}, "input_features", (length,) * 3, front=False)
        case kinds.Patches():
            pixels = torch.randn(3, part.channels, part.size, part.size, generator=chance)
            return Batch({"pixel_values": pixels}, "pixel_values", (part.size,) * 3, front=False)
        case kinds.Waveform():
            stride, least = 1, 1
            for each in part.convolutions:
                least, stride = least + (each.kernel - 1) * stride, stride * each.stride
            lengths = tuple(least + stride * (n - 1) + stride // 2 for n in LENGTHS)
            waves = torch.randn(3, lengths[0], generator=chance)
            return Batch({"input_values": waves}, "input_values", lengths, front=False)


def _lengths(longest: int | None, window: int | None = None) -> tuple[int, ...]:
    """A window that is short enough is left behind, so that it is seen to matter."""
    wanted = LENGTHS[0] + (window if window is not None and window <= 64 else 0)
    whole = min(wanted, longest or wanted)
    return whole, max(1, whole * 2 // 3), max(1, whole // 3)


def _longest(part: kinds.InputPosition | None) -> int | None:
    return (
        part.length
        if isinstance(part, kinds.LearnedPosition | kinds.FixedPosition | kinds.AxialPosition)
        else None
    )


def _tokens(vocabulary: int, length: int, pad: int, chance: torch.Generator) -> Tensor:
    """Any but the padding."""
    tokens = torch.randint(0, max(1, vocabulary - 1), (3, length), generator=chance)
    return tokens + (tokens >= pad) if pad < vocabulary > 1 else tokens


def _ended(batch: Batch, end: kinds.EndToken, vocabulary: int) -> Batch:
    """Each row has its end token where it ends, and no other."""
    token = vocabulary - 1 if end.token is None else end.token
    tokens = batch.given["input_ids"].clone()
    tokens[tokens == token] = 0 if token else 1
    tokens[torch.arange(3), torch.tensor(batch.lengths) - 1] = token
    tokens[:, -1] = token
    return replace(batch, given={**batch.given, "input_ids": tokens})


# ------------------------------------------------------------------ outputs


@torch.inference_mode()
def run(model: CoreModel, batch: Batch) -> dict[str, Found]:
    """The main tensors of a model, under Hugging Face's names."""
    return outputs(model, batch.like(model).given)


def rounding(model: CoreModel, batch: Batch) -> dict[str, float]:
    """How far float32 is from float64 in each output: nobody else's float32 can be asked to come closer than that."""
    single = run(model, batch)
    double = run(model.double(), batch)
    model.float()
    return {name: (single[name].seen - double[name].seen).abs().max().item() for name in single}


def outputs(model: CoreModel, given: Mapping[str, Tensor]) -> dict[str, Found]:
    padding_mask = given["attention_mask"].bool() if "attention_mask" in given else None
    match model:
        case EncoderDecoder():
            encoded = model.encode(_main(given), padding_mask)
            logits = model.head(model.decode(given["decoder_input_ids"], encoded))
            return {
                "logits": Found(logits),
                "encoder_last_hidden_state": Found(encoded.hidden, encoded.padding_mask),
            }
        case Decoder():
            hidden, _ = model(given["input_ids"], padding_mask)
            return {
                "logits": Found(model.head(hidden), padding_mask),
                "last_hidden_state": Found(hidden, padding_mask),
            }
        case DualEncoder():
            texts, images = (
                model.texts(given["input_ids"], padding_mask),
                model.images(given["pixel_values"]),
            )
            scores = texts @ images.mT * model.scale.exp()
            return {
                "logits_per_text": Found(scores),
                "text_embeds": Found(texts),
                "image_embeds": Found(images),
            }
        case Encoder():
            return _encoder(model, given, padding_mask)
        case MemoryNetwork():
            told = (
                None if padding_mask is None else padding_mask[..., None].expand_as(given["story"])
            )
            scores = model.head(model(given["story"], given["question"], told)[0])
            return {"logits": Found(scores)}


def _main(given: Mapping[str, Tensor]) -> Tensor:
    names = ("input_ids", "input_features", "pixel_values", "input_values")
    return next(given[name] for name in names if name in given)


def _encoder(
    model: Encoder, given: Mapping[str, Tensor], padding_mask: Tensor | None
) -> dict[str, Found]:
    inputs = _main(given)
    beside = {"segments": given["token_type_ids"]} if "token_type_ids" in given else {}
    hidden, _ = model(inputs, padding_mask, **beside)
    places = model.input.output_padding_mask(padding_mask)
    found = {"last_hidden_state": Found(hidden, places)}
    if model.pool is not None:
        text = "text_embeds" if "input_ids" in given else "image_embeds"
        name = "pooler_output" if model.pool.project is None else text
        found[name] = Found(model.pool(hidden, places, inputs))
    if model.head is not None:
        found["prediction_logits" if model.labels is not None else "logits"] = Found(
            model.head(hidden), places
        )
    if model.labels is not None:
        scores = model.classes(hidden, padding_mask, inputs)
        each = not isinstance(model.labels, DistilledHead) and model.labels.each
        found["seq_relationship_logits" if model.head is not None else "logits"] = Found(
            scores, places if each else None
        )
    return found
