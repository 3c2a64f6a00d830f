"""CTranslate2: our parts become those of its specification, whatever the family; what it lacks is named.

Nothing goes through transformers: the library takes a tree of weights, and our models are made of the same parts.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch
from torch import Tensor

from regard import spec as kinds
from regard.build import CoreModel
from regard.core.frontend import Spectrogram
from regard.core.mask import CausalMask
from regard.core.positional_encoding import Sinusoidal
from regard.decode.batch_decoding import DecodingSettings, SpecialTokens, decode
from regard.decode.strategy import Greedy, Limit
from regard.errors import DataError, ModelError, SettingError
from regard.families import folder as folders
from regard.model import Decoder, EncoderDecoder
from regard.text.tokenizer_files import read_vocabulary
from regard.verify.invariants import Finding
from regard.verify.parity import comparison
from regard.verify.random_inputs import Batch, padding, random_batch, run

_ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "quick_gelu": "GELUSigmoid", "silu": "SWISH", "tanh": "Tanh",
}  # fmt: skip


def library() -> Any:
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        raise SettingError(
            "this format needs the package ctranslate2", "pip install ctranslate2"
        ) from None


def _cannot(what: str) -> NoReturn:
    raise ModelError(
        f"CTranslate2 has no {what}",
        "known there: Marian and our translators, PEGASUS, BART, mBART, T5, Whisper, GPT, GPT-2, GPT-NeoX, LLaMA, Mistral, "
        "Qwen2, Gemma; for others use --to onnx",
    )


def write(
    out: Path, source: Path, model: CoreModel, opened: folders.ModelFolder
) -> tuple[list[str], list[str]]:
    """The model's files; gives the vocabularies they hold, of the source and the target."""
    ct2 = library()
    match model, opened.spec:
        case EncoderDecoder(), kinds.EncoderDecoder(source=kinds.Spectrogram()):
            made, target = (
                _whisper(ct2, model, opened.spec),
                _vocabulary(source, opened.spec.target.vocabulary),
            )
            names = (target, target)
            made.register_vocabulary(target)
            _describe_sound(made.config, source, opened.spec)
        case EncoderDecoder(), kinds.EncoderDecoder():
            made = ct2.specs.TransformerSpec(
                _encoder(
                    ct2,
                    model.encoder,
                    model.source,
                    opened.spec.encoder,
                    opened.spec.source,
                    opened,
                ),
                _decoder(
                    ct2,
                    model.decoder,
                    model.target,
                    opened.spec.decoder,
                    opened.spec.target,
                    opened,
                ),
            )
            _head(made.decoder, model.head)
            second = (
                "target_tokenizer.json"
                if (source / "target_tokenizer.json").exists()
                else "tokenizer.json"
            )
            first = _vocabulary(source, opened.spec.source.vocabulary)  # type: ignore[union-attr]
            names = (first, _vocabulary(source, opened.spec.target.vocabulary, second))
            made.register_source_vocabulary(names[0])
            made.register_target_vocabulary(names[1])
            assert opened.ids is not None
            made.config.decoder_start_token = names[1][opened.ids.start]
            made.config.bos_token, made.config.eos_token = (
                names[1][opened.ids.start],
                names[1][opened.ids.end],
            )
            made.config.unk_token = "" if opened.ids.unk is None else names[1][opened.ids.unk]
            made.config.layer_norm_epsilon = _eps(opened.spec.encoder, opened.spec.decoder)
        case Decoder(), kinds.Decoder():
            parts = _decoder(
                ct2, model.stack, model.tokens, opened.spec.stack, opened.spec.tokens, opened
            )
            _head(parts, model.head)
            made = ct2.specs.TransformerDecoderModelSpec(parts)
            target = _vocabulary(source, opened.spec.tokens.vocabulary)
            names = (target, target)
            made.register_vocabulary(target)
            for word, key in (
                ("bos_token", "bos_token_id"),
                ("eos_token", "eos_token_id"),
                ("unk_token", "unk_token_id"),
            ):
                i = opened.config.get(key)
                i = i[0] if isinstance(i, list) and i else i
                setattr(
                    made.config,
                    word,
                    target[i] if isinstance(i, int) and 0 <= i < len(target) else "",
                )
            made.config.layer_norm_epsilon = _eps(opened.spec.stack)
        case _:
            _cannot(f"place for a model of the kind {type(opened.spec).__name__}")
    made.validate()
    made.optimize(quantization=None)
    made.save(str(out))
    return names


def _vocabulary(folder: Path, size: int, name: str = "tokenizer.json") -> list[str]:
    """The tokens by id; rows of the embedding that have none get names nobody writes."""
    if not (folder / name).is_file():
        raise DataError(
            f"{folder} has no {name}, and a CTranslate2 model holds its vocabulary",
            "put the tokenizer.json of the model there, or use --to onnx",
        )
    known = read_vocabulary(folder / name)
    return [known.get(i) or f"<extra_id_{i}>" for i in range(size)]


def _eps(*stacks: kinds.Stack) -> float:
    found = {
        norm.eps for stack in stacks for norm in (stack.block.norm, stack.final) if norm is not None
    }
    if len(found) > 1:
        _cannot(f"norms with several ε: {sorted(found)}")
    return found.pop()


# ------------------------------------------------------------------ stacks


def _options(ct2: Any, part: kinds.Stack, tokens: kinds.Tokens | None) -> dict[str, Any]:
    """What a stack of theirs must be told, or why there is none."""
    block, attention = part.block, part.block.attention
    if (
        isinstance(block.residual, kinds.Reversible)
        or part.turns
        or not isinstance(attention.mixer, kinds.SoftmaxAttention)
    ):
        _cannot("layers other than one kind of softmax attention on one stream")
    if part.heads is not None or part.cross_heads is not None:
        _cannot("layers with other numbers of heads")
    if attention.d_k != attention.d_v:
        _cannot(f"values of another width than keys ({attention.d_v} and {attention.d_k})")
    if block.cross is not None and (block.cross.heads, block.cross.d_k) != (
        attention.heads,
        attention.d_k,
    ):
        _cannot("cross-attention with other heads than self-attention")
    if block.feedforward.activation not in _ACTIVATIONS:
        _cannot(f"activation {block.feedforward.activation!r}")
    if part.beside is not None or not isinstance(
        part.position, (kinds.Rope, kinds.T5Bias, kinds.Alibi, type(None))
    ):
        _cannot("attention with vectors of distances")
    if isinstance(block.residual, kinds.PostNorm) and part.final is not None:
        _cannot("last norm after a stack with norms behind its sublayers")
    options: dict[str, Any] = {
        "num_layers": part.layers,
        "num_heads": attention.heads,
        "num_heads_kv": None if attention.key_heads == attention.heads else attention.key_heads,
        "head_dim": attention.d_k,
        "pre_norm": not isinstance(block.residual, kinds.PostNorm),
        "no_final_norm": part.final is None,
        "activation": ct2.specs.Activation[_ACTIVATIONS[block.feedforward.activation]],
        "layernorm_embedding": tokens is not None and tokens.norm is not None,
        "relative_attention_bias": isinstance(part.position, kinds.T5Bias),
        "ffn_glu": isinstance(block.feedforward, kinds.GatedFeedForward),
        "rms_norm": isinstance(block.norm, kinds.RMSNorm),
    }
    if tokens is not None and (tokens.segments or tokens.width):
        _cannot("segments or narrow tables in the embedding")
    if isinstance(part.position, kinds.Rope):
        options |= _rotary(ct2, part.position, attention)
    return options


def _rotary(ct2: Any, part: kinds.Rope, attention: kinds.Attention) -> dict[str, Any]:
    said = {
        "rotary_dim": int(attention.d_k * part.share) if part.share != 1 else 0,
        "rotary_interleave": part.pairs == "neighbours",
        "rotary_base": part.base,
    }
    match part.scaling:
        case None:
            return said
        case kinds.LinearScaling(factor):
            kind = ct2.specs.attention_spec.RotaryScalingType.Linear
            return {**said, "rotary_scaling_type": kind, "rotary_scaling_factor": factor}
        case kinds.BandedScaling(_, _, _, length):
            kind = ct2.specs.attention_spec.RotaryScalingType.Llama3
            return {**said, "rotary_scaling_type": kind, "original_max_position_embeddings": length}


def _encoder(
    ct2: Any,
    stack: Any,
    front: Any,
    part: kinds.Stack,
    tokens: kinds.FrontEnd,
    opened: folders.ModelFolder,
) -> Any:
    assert isinstance(tokens, kinds.Tokens)
    made = ct2.specs.TransformerEncoderSpec(**_options(ct2, part, tokens))
    _embedding(made, made.embeddings[0], front, opened)
    _layers(made, stack, part)
    return made


def _decoder(
    ct2: Any,
    stack: Any,
    front: Any,
    part: kinds.Stack,
    tokens: kinds.Tokens,
    opened: folders.ModelFolder,
) -> Any:
    options = _options(ct2, part, tokens)
    if isinstance(part.block.residual, kinds.Parallel):
        if options["rms_norm"]:
            _cannot("parallel block with RMSNorm")
        options |= {"parallel_residual": True, "shared_layer_norm": part.block.residual.norms == 1}
    if isinstance(part.pattern, kinds.CausalMask) and part.pattern.window is not None:
        options["sliding_window"] = part.pattern.window
    if isinstance(part.position, kinds.Alibi):
        options["alibi"] = True
    made = ct2.specs.TransformerDecoderSpec(
        **options, with_encoder_attention=part.block.cross is not None
    )
    _embedding(made, made.embeddings, front, opened)
    _layers(made, stack, part)
    return made


def _embedding(made: Any, table: Any, front: Any, opened: folders.ModelFolder) -> None:
    table.weight = _array(front.table.weight)
    made.scale_embeddings = front.scale if front.scale != 1.0 else False
    if front.norm is not None:
        _norm(made.layernorm_embedding, front.norm)
    if front.position is not None:
        # Sinusoids have no end here; there they are a table.
        length = opened.positions if isinstance(front.position, Sinusoidal) else 0
        rows = front.position.rows(length)
        made.position_encodings.encodings = _array(rows[: length or None])
    elif "position_encodings" in vars(made):
        made.position_encodings.encodings = _array(
            torch.zeros(opened.positions, front.table.weight.shape[1])
        )


def _head(made: Any, head: Any) -> None:
    if head.transform is not None:
        _cannot("dense layer before the vocabulary")
    made.projection.weight = _array(head.table.weight)
    if head.bias is not None:
        made.projection.bias = _array(head.bias)
    if head.scale != 1.0:
        made.scale_outputs = head.scale


def _layers(made: Any, stack: Any, part: kinds.Stack) -> None:
    if stack.final_norm is not None:
        _norm(made.layer_norm, stack.final_norm)
    for i, layer in enumerate(made.layer):
        block = stack.blocks[i % len(stack.blocks)]
        _attention(layer.self_attention, block.attention, part.block.attention)
        if isinstance(part.position, kinds.T5Bias):
            layer.self_attention.relative_attention_bias = _array(stack.position.table)
            layer.self_attention.relative_attention_max_distance = numpy.int32(
                part.position.distance
            )
        if isinstance(part.position, kinds.Rope) and isinstance(
            part.position.scaling, kinds.BandedScaling
        ):
            _bands(layer.self_attention, part.position.scaling)
        if part.block.cross is not None:
            _attention(layer.attention, block.cross, part.block.cross)
        _feedforward(layer.ffn, block.feedforward)
        for place, norm in zip(_places(layer, part.block), _norms(block), strict=True):
            _norm(place, norm)


def _bands(made: Any, part: kinds.BandedScaling) -> None:
    """The library reads all three, but its class declares only two of them for this kind."""
    vars(made).update(
        rotary_scaling_factor=numpy.float32(part.factor),
        rotary_low_freq_factor=numpy.float32(part.low),
        rotary_high_freq_factor=numpy.float32(part.high),
    )


def _places(layer: Any, part: kinds.Block) -> list[Any]:
    """Where theirs has the norms, in the order of ours."""
    match part.residual:
        case kinds.Parallel(1):
            return [layer.shared_layer_norm]
        case kinds.Parallel():
            return [layer.input_layer_norm, layer.post_attention_layer_norm]
        case _:
            cross = [layer.attention.layer_norm] if part.cross is not None else []
            return [layer.self_attention.layer_norm, *cross, layer.ffn.layer_norm]


def _norms(block: Any) -> Iterator[Any]:
    scheme = block.residual
    return iter(scheme.norms) if "norms" in scheme._modules else (each.norm for each in scheme.each)


def _attention(made: Any, attention: Any, part: kinds.Attention) -> None:
    first = (
        [attention.project.qkv]
        if "qkv" in attention.project._modules
        else [attention.project.q, attention.project.kv]
    )
    for theirs, ours in zip(made.linear, [*first, attention.output], strict=True):
        _linear(theirs, ours)
    if part.scale is not None:
        made.queries_scale = part.scale


def _feedforward(made: Any, part: Any) -> None:
    _linear(made.linear_1, part.outer)
    if "linear_0_noact" not in vars(made):
        _linear(made.linear_0, part.inner)
        return
    for theirs, weight in zip(
        (made.linear_0, made.linear_0_noact), part.inner.weight.chunk(2), strict=True
    ):
        theirs.weight = _array(weight)
    if part.inner.bias is not None:
        for theirs, bias in zip(
            (made.linear_0, made.linear_0_noact), part.inner.bias.chunk(2), strict=True
        ):
            theirs.bias = _array(bias)


def _linear(made: Any, linear: Any) -> None:
    made.weight = _array(linear.weight)
    bias = linear.full_bias()
    if bias is not None:
        made.bias = _array(bias)


def _norm(made: Any, norm: Any) -> None:
    if "beta" in vars(made):
        made.gamma = _array(norm.weight)
        made.beta = _array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)
    else:
        made.gamma = _array(norm.weight + norm.offset)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().numpy()


# ------------------------------------------------------------------ sound


def _whisper(ct2: Any, model: EncoderDecoder, part: kinds.EncoderDecoder) -> Any:
    plain = kinds.LayerNorm(1e-5)
    for stack in (part.encoder, part.decoder):
        usual = (
            isinstance(stack.block.feedforward, kinds.FeedForward)
            and stack.block.feedforward.activation == "gelu"
        )
        if not (
            usual
            and stack.block.norm == stack.final == plain
            and isinstance(stack.block.residual, kinds.PreNorm)
        ):
            _cannot("speech model other than Whisper's")
    front = model.source
    assert isinstance(front, Spectrogram)
    made = ct2.specs.WhisperSpec(
        part.encoder.layers,
        part.encoder.block.attention.heads,
        part.decoder.layers,
        part.decoder.block.attention.heads,
    )
    for theirs, ours in ((made.encoder.conv1, front.first), (made.encoder.conv2, front.second)):
        theirs.weight, theirs.bias = _array(ours.weight), _array(ours.bias)  # type: ignore[arg-type]
    assert front.position is not None
    assert model.target.position is not None
    made.encoder.position_encodings.encodings = _array(front.position.rows(0))
    made.decoder.position_encodings.encodings = _array(model.target.position.rows(0))
    made.decoder.embeddings.weight = _array(model.target.table.weight)
    _layers(made.encoder, model.encoder, part.encoder)
    _layers(made.decoder, model.decoder, part.decoder)
    _head(made.decoder, model.head)
    return made


def _describe_sound(config: Any, folder: Path, part: kinds.EncoderDecoder) -> None:
    """What is never said, which tokens are languages, and where words can be found in the sound."""
    said = folders.generation(folder) or {}
    layers, heads = part.decoder.layers, part.decoder.block.attention.heads
    config.suppress_ids = said.get("suppress_tokens") or []
    config.suppress_ids_begin = said.get("begin_suppress_tokens") or []
    config.lang_ids = sorted((said.get("lang_to_id") or {}).values())
    later = [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]
    config.alignment_heads = said.get("alignment_heads") or later


# ------------------------------------------------------------------ the report


NAME = "here = ctranslate2"
FLOAT32 = {"device": "cpu", "compute_type": "float32"}


def compare(
    out: Path, names: tuple[list[str], list[str]], model: CoreModel, opened: folders.ModelFolder
) -> list[Finding]:
    """What CTranslate2 makes of random tokens or sound in float32, against ours."""
    batch = random_batch(opened.spec, padding(opened.config))
    match model, opened.spec:
        case Decoder(), kinds.Decoder():
            return list(
                _compare_decoder(
                    library().Generator(str(out), **FLOAT32), names[1], model, opened, batch
                )
            )
        case EncoderDecoder(), kinds.EncoderDecoder(source=kinds.Spectrogram()):
            return list(_compare_sound(library(), out, names[1], model, opened, batch))
        case EncoderDecoder(), kinds.EncoderDecoder():
            return [
                _compare_sequences(
                    library().Translator(str(out), **FLOAT32), names, model, opened, batch
                )
            ]
    raise AssertionError("nothing else is written")


def _compare_decoder(
    theirs: Any, names: list[str], model: Decoder, opened: folders.ModelFolder, batch: Batch
) -> Iterator[Finding]:
    """The logits of all positions. With a short window that call does not go beyond it, but generation does."""
    tokens, pattern = batch.given["input_ids"], model.stack.pattern
    window = pattern.window if isinstance(pattern, CausalMask) else None
    batch = replace(batch, given={"input_ids": tokens[:, :window]})
    found = _tensor(theirs.forward_batch(_texts(batch.given["input_ids"], names)))
    check = comparison(model, batch, opened.kind)
    yield check(NAME, ("logits", found, run(model, batch)["logits"].tensor))
    end = opened.config.get("eos_token_id")
    if window is not None and window < tokens.shape[1] and isinstance(end, int):
        prompts = batch.given["input_ids"]
        said = theirs.generate_batch(
            _texts(prompts, names), max_length=8, beam_size=1, include_prompt_in_result=False
        )
        wanted = decode(
            model,
            prompts.tolist(),
            SpecialTokens(0, None, end, ()),
            DecodingSettings(Greedy(), Limit(0.0, 8)),
        )
        same = [
            row.sequences_ids[0] == list(like[0].tokens)
            for row, like in zip(said, wanted, strict=True)
        ]
        yield Finding(
            f"{NAME}, generation", float(same.count(False)), 0.0, "rows whose greedy tokens differ"
        )


def _compare_sequences(
    theirs: Any,
    names: tuple[list[str], list[str]],
    model: EncoderDecoder,
    opened: folders.ModelFolder,
    batch: Batch,
) -> Finding:
    """log p of every target token, and of the end."""
    assert opened.ids is not None
    sources, targets = batch.given["input_ids"], batch.given["decoder_input_ids"][:, 1:]
    start = torch.full((len(targets), 1), opened.ids.start)
    labels = torch.cat([targets, torch.full_like(start, opened.ids.end)], dim=1)
    batch = replace(
        batch, given={"input_ids": sources, "decoder_input_ids": torch.cat([start, targets], dim=1)}
    )
    scored = theirs.score_batch(_texts(sources, names[0]), _texts(targets, names[1]))
    found = torch.tensor([row.log_probs for row in scored])
    logits = run(model, batch)["logits"].tensor
    check = comparison(model, batch, opened.kind)
    check.rounding = {"log probabilities": check.rounding["logits"]}
    return check(NAME, ("log probabilities", found, _chosen(logits, labels)))


def _chosen(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]


def _compare_sound(
    ct2: Any,
    out: Path,
    names: list[str],
    model: EncoderDecoder,
    opened: folders.ModelFolder,
    batch: Batch,
) -> Iterator[Finding]:
    """What the encoder makes of sound; and the scores of what the decoder says first, if it knows how to leave out times."""
    theirs = ct2.models.Whisper(str(out), **FLOAT32)
    features = batch.given["input_features"]
    view = ct2.StorageView.from_array(features.numpy())
    wanted = run(model, batch)["encoder_last_hidden_state"].tensor
    check = comparison(model, batch, opened.kind)
    yield check(
        f"{NAME}, encoder", ("encoder_last_hidden_state", _tensor(theirs.encode(view)), wanted)
    )
    special = ("<|startoftranscript|>", "<|notimestamps|>")
    if missing := [token for token in special if token not in names]:
        yield Finding(f"{NAME}, decoder", None, 0.0, f"the vocabulary has no {missing[0]}")
        return
    prompt = [names.index(token) for token in special]
    said = theirs.generate(
        view, [prompt] * len(features), beam_size=1, max_length=12, suppress_blank=False, suppress_tokens=[],
        return_logits_vocab=True,
    )  # fmt: skip
    pairs = []
    for row, one in enumerate(said):
        tokens = torch.tensor([[*prompt, *one.sequences_ids[0]]])
        given = {"input_features": features[row : row + 1], "decoder_input_ids": tokens}
        scores = run(model, replace(batch, given=given))["logits"].tensor[0, len(prompt) - 1 :]
        found = torch.stack([_tensor(step) for step in one.logits[0]]).reshape(-1, scores.shape[-1])
        pairs.append(("logits", found, scores[: len(found)]))
    yield check(f"{NAME}, decoder", *pairs)


def _texts(ids: Tensor, names: list[str]) -> list[list[str]]:
    return [[names[i] for i in row] for row in ids.tolist()]


def _tensor(view: Any) -> Tensor:
    return torch.from_numpy(numpy.array(view))
