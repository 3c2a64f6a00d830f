"""The check of a CTranslate2 folder: what the library computes in float32, against ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from regard import spec as specs
from regard.core.masks.sparse_masks import CausalSlidingWindowMask
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.families import folder as folders
from regard.lab.convert.ctranslate2 import Vocabularies, library
from regard.lab.verify.invariants import Finding
from regard.lab.verify.outputs import run
from regard.lab.verify.parity import float32_comparison
from regard.lab.verify.random_inputs import RandomBatch, pad_token_id, random_batch
from regard.wirings.core_model import CoreModel
from regard.wirings.decoder import Decoder
from regard.wirings.encoder_decoder import EncoderDecoder

NAME = "here = ctranslate2"
FLOAT32 = {"device": "cpu", "compute_type": "float32"}


def compare(
    out: Path, vocabularies: Vocabularies, model: CoreModel, opened: folders.ModelFolder
) -> list[Finding]:
    """Compares what both make of random tokens or sound."""
    ct2 = library()
    batch = random_batch(opened.spec, pad_token_id(opened.config))
    _, target_tokens = vocabularies
    match model, opened.spec:
        case Decoder(), specs.Decoder():
            generator = ct2.Generator(str(out), **FLOAT32)
            return list(_compare_decoder(generator, target_tokens, model, opened, batch))
        case EncoderDecoder(), specs.EncoderDecoder(source=specs.Spectrogram()):
            return list(_compare_speech(ct2, out, target_tokens, model, opened, batch))
        case EncoderDecoder(), specs.EncoderDecoder():
            translator = ct2.Translator(str(out), **FLOAT32)
            return [_compare_translation(translator, vocabularies, model, opened, batch)]
    raise AssertionError("nothing else is written")


def _compare_decoder(
    generator: Any,
    vocabulary: list[str],
    model: Decoder,
    opened: folders.ModelFolder,
    batch: RandomBatch,
) -> Iterator[Finding]:
    """The logits of all positions.

    With a sliding window that call of the library does not go beyond it, but generation does:
    then the tokens of greedy search are compared too.
    """
    token_ids = batch.inputs["input_ids"]  # [B, T]
    stack: Any = model.stack
    pattern = stack.layer_types[0].pattern
    window = pattern.window if isinstance(pattern, CausalSlidingWindowMask) else None
    prompts = token_ids[:, :window]
    batch = replace(batch, inputs={"input_ids": prompts})
    actual = _tensor(generator.forward_batch(_tokens(prompts, vocabulary)))  # [B, T, V]
    compare_outputs = float32_comparison(model, batch, opened.model_type)
    yield compare_outputs(NAME, ("logits", actual, run(model, batch)["logits"].tensor))
    end = opened.config.get("eos_token_id")
    if window is not None and window < token_ids.shape[1] and isinstance(end, int):
        yield _compare_generation(generator, vocabulary, model, prompts, end)


def _compare_generation(
    generator: Any, vocabulary: list[str], model: Decoder, prompts: Tensor, end: int
) -> Finding:
    """Greedy search beyond the sliding window: in how many rows it finds other tokens."""
    new_tokens = 8
    results = generator.generate_batch(
        _tokens(prompts, vocabulary),
        max_length=new_tokens,
        beam_size=1,
        include_prompt_in_result=False,
    )
    special_tokens = SpecialTokens(0, None, end, ())
    settings = DecodingSettings(Greedy(), Limit.fixed(new_tokens))
    expected = decode(model, prompts.tolist(), special_tokens, settings)
    different = 0
    for result, hypotheses in zip(results, expected, strict=True):
        different += result.sequences_ids[0] != list(hypotheses[0].tokens)
    note = "rows whose greedy tokens differ"
    return Finding(f"{NAME}, generation", float(different), 0.0, note)


def _compare_translation(
    translator: Any,
    vocabularies: Vocabularies,
    model: EncoderDecoder,
    opened: folders.ModelFolder,
    batch: RandomBatch,
) -> Finding:
    """The log-probability of every target token, and of the end token."""
    assert opened.ids is not None
    source_tokens, target_tokens = vocabularies
    sources = batch.inputs["input_ids"]  # [B, S]
    targets = batch.inputs["decoder_input_ids"][:, 1:]  # [B, T - 1]
    start = torch.full((len(targets), 1), opened.ids.start)
    end = torch.full_like(start, opened.ids.end)
    # Teacher forcing: the library adds start and end itself.
    decoder_inputs = torch.cat([start, targets], dim=1)  # [B, T]
    labels = torch.cat([targets, end], dim=1)  # [B, T]
    batch = replace(batch, inputs={"input_ids": sources, "decoder_input_ids": decoder_inputs})
    scores = translator.score_batch(
        _tokens(sources, source_tokens), _tokens(targets, target_tokens)
    )
    actual = torch.tensor([row.log_probs for row in scores])
    logits = run(model, batch)["logits"].tensor  # [B, T, V]
    expected = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]  # [B, T]
    compare_outputs = float32_comparison(model, batch, opened.model_type)
    rounding = compare_outputs.rounding_errors["logits"]
    compare_outputs.rounding_errors = {"log probabilities": rounding}
    return compare_outputs(NAME, ("log probabilities", actual, expected))


def _compare_speech(
    ct2: Any,
    out: Path,
    vocabulary: list[str],
    model: EncoderDecoder,
    opened: folders.ModelFolder,
    batch: RandomBatch,
) -> Iterator[Finding]:
    """The encoder's output for random sound, and the logits of what the decoder then says."""
    whisper = ct2.models.Whisper(str(out), **FLOAT32)
    features = batch.inputs["input_features"]  # [B, mels, frames]
    view = ct2.StorageView.from_array(features.numpy())
    name = "encoder_last_hidden_state"
    expected = run(model, batch)[name].tensor
    compare_outputs = float32_comparison(model, batch, opened.model_type)
    yield compare_outputs(f"{NAME}, encoder", (name, _tensor(whisper.encode(view)), expected))
    # Without the second, the library applies its rules for timestamps to the logits.
    special_tokens = ("<|startoftranscript|>", "<|notimestamps|>")
    missing = [token for token in special_tokens if token not in vocabulary]
    if missing:
        yield Finding(f"{NAME}, decoder", None, 0.0, f"the vocabulary has no {missing[0]}")
        return
    prompt = [vocabulary.index(token) for token in special_tokens]
    results = whisper.generate(
        view,
        [prompt] * len(features),
        beam_size=1,
        max_length=12,
        suppress_blank=False,
        suppress_tokens=[],
        return_logits_vocab=True,
    )
    pairs = []
    for row, result in enumerate(results):
        token_ids = torch.tensor([[*prompt, *result.sequences_ids[0]]])  # [1, T]
        inputs = {"input_features": features[row : row + 1], "decoder_input_ids": token_ids}
        logits = run(model, replace(batch, inputs=inputs))["logits"].tensor[0]  # [T, V]
        logits = logits[len(prompt) - 1 :]  # those of what was generated
        steps = torch.stack([_tensor(step) for step in result.logits[0]])
        actual = steps.reshape(-1, logits.shape[-1])
        pairs.append(("logits", actual, logits[: len(actual)]))
    yield compare_outputs(f"{NAME}, decoder", *pairs)


def _tokens(token_ids: Tensor, vocabulary: list[str]) -> list[list[str]]:
    """Token ids as the strings that the library takes."""
    return [[vocabulary[i] for i in row] for row in token_ids.tolist()]


def _tensor(view: Any) -> Tensor:
    return torch.from_numpy(numpy.array(view))
