"""CTranslate2: our modules become those of its model specification, whatever the family.

Nothing goes through transformers: the library takes a tree of weights, and our models are made
of the same parts. What it has no part for is refused by name.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch
from torch import Tensor

from regard import spec as specs
from regard.core.frontends.embedding import Embedding
from regard.core.frontends.spectrogram_frontend import Spectrogram
from regard.core.positions.positional_encoding import Sinusoidal
from regard.data.text.tokenizer_files import read_vocabulary
from regard.families import folder as folders
from regard.system.errors import DataError, ModelError, SettingError
from regard.wirings.core_model import CoreModel
from regard.wirings.decoder import Decoder
from regard.wirings.encoder_decoder import EncoderDecoder

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "tanh": "Tanh",
}
# The tokens by id, of the source and of the target.
Vocabularies = tuple[list[str], list[str]]


def library() -> Any:
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        raise SettingError(
            "this format needs the package ctranslate2", "pip install ctranslate2"
        ) from None


def _refuse(feature: str) -> NoReturn:
    raise ModelError(
        f"CTranslate2 does not support {feature}",
        "convert one of Marian, regard translators, PEGASUS, BART, mBART, T5, Whisper, GPT, GPT-2, "
        "GPT-NeoX, LLaMA, Mistral, Qwen2, Gemma; or use --to onnx",
    )


# ------------------------------------------------------------------ models


def write(out: Path, source: Path, model: CoreModel, opened: folders.ModelFolder) -> Vocabularies:
    """Writes the model's files, and returns the vocabularies that are among them."""
    ct2 = library()
    match model, opened.spec:
        case EncoderDecoder(), specs.EncoderDecoder(source=specs.Spectrogram()):
            model_spec, vocabularies = _speech_model(ct2, source, model, opened.spec)
        case EncoderDecoder(), specs.EncoderDecoder():
            model_spec, vocabularies = _translation_model(ct2, source, model, opened)
        case Decoder(), specs.Decoder():
            model_spec, vocabularies = _language_model(ct2, source, model, opened)
        case _:
            _refuse(f"models of the kind {type(opened.spec).__name__}")
    model_spec.validate()  # raises if a weight is missing
    model_spec.optimize(quantization=None)  # float32; the library quantizes when it loads
    model_spec.save(str(out))
    return vocabularies


_TRANSLATE = """\
import ctranslate2
from tokenizers import Tokenizer

source = Tokenizer.from_file("tokenizer.json")
target = Tokenizer.from_file("{target}")
translator = ctranslate2.Translator(".")
tokens = source.encode("This is a text.").tokens
tokens += ["{end}"] * (tokens[-1:] != ["{end}"])  # a source ends with it
result = translator.translate_batch([tokens], max_decoding_length=20)[0].hypotheses[0]
print(target.decode([target.token_to_id(token) for token in result]))
"""
_GENERATE = """\
import ctranslate2
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")
generator = ctranslate2.Generator(".")
tokens = tokenizer.encode("This is", add_special_tokens=False).tokens
result = generator.generate_batch([tokens], max_length=20)[0]
print(tokenizer.decode(result.sequences_ids[0]))
"""
_TRANSCRIBE = """\
import ctranslate2
import numpy
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor

samples = numpy.zeros(16000, dtype=numpy.float32)  # a second of sound at 16 kHz
extractor = WhisperFeatureExtractor.from_pretrained(".")
features = extractor(samples, sampling_rate=16000, return_tensors="np").input_features
prompt = ["<|startoftranscript|>", "<|notimestamps|>"]
view = ctranslate2.StorageView.from_array(features)
result = ctranslate2.models.Whisper(".").generate(view, [prompt])[0]
print(Tokenizer.from_file("tokenizer.json").decode(result.sequences_ids[0]))
"""


def example(folder: Path, opened: folders.ModelFolder, vocabularies: Vocabularies) -> str:
    """Python that runs the model once."""
    part = opened.spec
    if not part.is_encoder_decoder:
        return _GENERATE
    if part.main_input_name == "input_features":
        return _TRANSCRIBE
    assert opened.ids is not None
    end = vocabularies[0][opened.ids.end]
    return _TRANSLATE.format(target=_target_file(folder), end=end)


def _target_file(folder: Path) -> str:
    """The tokenizer of the target; both sides may have one."""
    own = "target_tokenizer.json"
    return own if (folder / own).exists() else "tokenizer.json"


def _translation_model(
    ct2: Any, folder: Path, model: EncoderDecoder, opened: folders.ModelFolder
) -> tuple[Any, Vocabularies]:
    part = opened.spec
    assert isinstance(part, specs.EncoderDecoder)
    assert isinstance(part.source, specs.Tokens)
    positions = opened.positions
    encoder = _encoder(ct2, part.encoder, part.source, model.encoder, model.source, positions)
    decoder = _decoder(
        ct2, part.decoder, part.target_tokens, model.decoder, model.target, positions
    )
    _lm_head(decoder, model.head)
    model_spec = ct2.specs.TransformerSpec(encoder, decoder)
    source_tokens = _vocabulary(folder, part.source.vocabulary)
    target_tokens = _vocabulary(folder, part.target_tokens.vocabulary, _target_file(folder))
    model_spec.register_source_vocabulary(source_tokens)
    model_spec.register_target_vocabulary(target_tokens)
    ids = opened.ids
    assert ids is not None
    config = model_spec.config
    # Tokens are named by their text: ids are those of the vocabulary.
    config.decoder_start_token = target_tokens[ids.start]
    config.bos_token = target_tokens[ids.start]
    config.eos_token = target_tokens[ids.end]
    config.unk_token = "" if ids.unk is None else target_tokens[ids.unk]
    config.layer_norm_epsilon = _norm_epsilon(part.encoder, part.decoder)
    return model_spec, (source_tokens, target_tokens)


def _language_model(
    ct2: Any, folder: Path, model: Decoder, opened: folders.ModelFolder
) -> tuple[Any, Vocabularies]:
    part = opened.spec
    assert isinstance(part, specs.Decoder)
    decoder = _decoder(ct2, part.stack, part.tokens, model.stack, model.tokens, opened.positions)
    _lm_head(decoder, model.head)
    model_spec = ct2.specs.TransformerDecoderModelSpec(decoder)
    vocabulary = _vocabulary(folder, part.tokens.vocabulary)
    model_spec.register_vocabulary(vocabulary)
    for name in ("bos_token", "eos_token", "unk_token"):
        token_id = opened.config.get(f"{name}_id")
        if isinstance(token_id, list) and token_id:  # LLaMA 3 has several ends
            token_id = token_id[0]
        token = ""
        if isinstance(token_id, int) and 0 <= token_id < len(vocabulary):
            token = vocabulary[token_id]
        setattr(model_spec.config, name, token)
    model_spec.config.layer_norm_epsilon = _norm_epsilon(part.stack)
    return model_spec, (vocabulary, vocabulary)


def _vocabulary(folder: Path, size: int, file: str = "tokenizer.json") -> list[str]:
    """The tokens by id; rows of the embedding without one get a name that no text contains."""
    if not (folder / file).is_file():
        raise DataError(
            f"{folder} has no {file}, which a CTranslate2 model needs",
            "put the tokenizer.json of the model there, or use --to onnx",
        )
    tokens = read_vocabulary(folder / file)
    return [tokens.get(i) or f"<extra_id_{i}>" for i in range(size)]


def _norm_epsilon(*stacks: specs.Stack) -> float:
    """The ε of all norms: the library has one setting for the whole model."""
    norms = [norm for stack in stacks for norm in (stack.block.norm, stack.final)]
    values = {norm.eps for norm in norms if norm is not None}
    if len(values) > 1:
        _refuse(f"norms with different ε: {sorted(values)}")
    return values.pop()


# ------------------------------------------------------------------ stacks


def _encoder(
    ct2: Any, part: specs.Stack, tokens: specs.Tokens, stack: Any, embedding: Any, positions: int
) -> Any:
    encoder = ct2.specs.TransformerEncoderSpec(**_stack_options(ct2, part, tokens))
    _embedding(encoder, encoder.embeddings[0], embedding, positions)
    _layers(encoder, stack, part)
    return encoder


def _decoder(
    ct2: Any, part: specs.Stack, tokens: specs.Tokens, stack: Any, embedding: Any, positions: int
) -> Any:
    options = _stack_options(ct2, part, tokens)
    if isinstance(part.block.residual, specs.Parallel):  # GPT-NeoX
        if options["rms_norm"]:
            _refuse("parallel blocks with RMSNorm")
        options["parallel_residual"] = True
        options["shared_layer_norm"] = part.block.residual.norms == 1
    pattern = part.block.pattern
    if isinstance(pattern, specs.CausalMask) and pattern.window is not None:
        options["sliding_window"] = pattern.window
    if isinstance(part.block.position, specs.Alibi):
        options["alibi"] = True
    options["with_encoder_attention"] = part.block.cross is not None
    decoder = ct2.specs.TransformerDecoderSpec(**options)
    _embedding(decoder, decoder.embeddings, embedding, positions)
    _layers(decoder, stack, part)
    return decoder


def _stack_options(ct2: Any, part: specs.Stack, tokens: specs.Tokens) -> dict[str, Any]:
    """The arguments of the library's encoder and decoder for a stack of ours."""
    _refuse_layers(part)
    _refuse_attention(part)
    if tokens.segments or tokens.width:
        _refuse("segment embeddings or factorized embeddings")
    block = part.block
    attention = block.attention
    grouped = attention.key_heads != attention.heads
    options: dict[str, Any] = {
        "num_layers": part.layers,
        "num_heads": attention.heads,
        "num_heads_kv": attention.key_heads if grouped else None,
        "head_dim": attention.d_k,
        "pre_norm": not isinstance(block.residual, specs.PostNorm),
        "no_final_norm": part.final is None,
        "activation": ct2.specs.Activation[_ACTIVATIONS[block.feedforward.activation]],
        "layernorm_embedding": tokens.norm is not None,
        "relative_attention_bias": isinstance(part.block.position, specs.T5Bias),
        "ffn_glu": isinstance(block.feedforward, specs.GatedFeedForward),
        "rms_norm": isinstance(block.norm, specs.RMSNorm),
    }
    if isinstance(part.block.position, specs.Rope):
        options |= _rope_options(ct2, part.block.position, attention)
    return options


def _refuse_layers(part: specs.Stack) -> None:
    """Refuses layers of a kind that the library lacks."""
    block = part.block
    attention = block.attention
    plain = attention.mixer == specs.SoftmaxAttention(attention.mixer.dropout)
    apart = attention.projection == "apart" and attention.qk_norm is None
    one_stream = not isinstance(block.residual, specs.NoResidual | specs.SandwichNorm)
    one_kind = set(part.blocks) == {block} and isinstance(part.scheme, specs.Plain | specs.Shared)
    if not one_kind or not plain or not apart or not one_stream:
        _refuse("stacks with other layers than one kind of softmax attention with residuals")
    if isinstance(block.feedforward, specs.ConvFeedForward | specs.MixtureOfExperts):
        _refuse(f"feed-forward layers of the kind {type(block.feedforward).__name__}")
    if isinstance(block.feedforward, specs.GatedFeedForward) and block.feedforward.limit:
        _refuse("clamped gates")
    if not isinstance(block.norm, specs.LayerNorm | specs.RMSNorm):
        _refuse(type(block.norm).__name__)
    if block.layer_scale is not None:
        _refuse("LayerScale")
    if block.feedforward.activation not in _ACTIVATIONS:
        _refuse(f"activation {block.feedforward.activation!r}")
    if isinstance(block.residual, specs.PostNorm) and part.final is not None:
        _refuse("a final norm after a post-norm stack")


def _refuse_attention(part: specs.Stack) -> None:
    """Refuses heads and positions that the library lacks."""
    attention = part.block.attention
    cross = part.block.cross
    if attention.d_k != attention.d_v:
        _refuse(f"values and keys of different widths ({attention.d_v} and {attention.d_k})")
    heads = (attention.heads, attention.d_k)
    if cross is not None and (cross.heads, cross.d_k) != heads:
        _refuse("cross-attention and self-attention with different heads")
    positions = (specs.Rope, specs.T5Bias, specs.Alibi, type(None))
    if not isinstance(part.block.position, positions):
        _refuse("attention with relative position embeddings")


def _rope_options(ct2: Any, part: specs.Rope, attention: specs.Attention) -> dict[str, Any]:
    options = {
        # 0: all dimensions of a head.
        "rotary_dim": int(attention.d_k * part.share) if part.share != 1 else 0,
        "rotary_interleave": part.pairs == "neighbours",
        "rotary_base": part.base,
    }
    scaling_types = ct2.specs.attention_spec.RotaryScalingType
    match part.scaling:
        case specs.LinearScaling(factor):
            options["rotary_scaling_type"] = scaling_types.Linear
            options["rotary_scaling_factor"] = factor
        case specs.BandedScaling(_, _, _, length):  # LLaMA 3; factors are set with the weights
            options["rotary_scaling_type"] = scaling_types.Llama3
            options["original_max_position_embeddings"] = length
        case specs.YarnScaling():
            _refuse("YaRN")
    return options


# ------------------------------------------------------------------ weights
#
# In these functions `target` is a part of the library's specification, which is given the
# weights of a module of ours.


def _embedding(target: Any, table: Any, embedding: Any, positions: int) -> None:
    table.weight = _array(embedding.table.weight)
    target.scale_embeddings = False if embedding.scale == 1.0 else embedding.scale
    if embedding.norm is not None:
        _norm(target.layernorm_embedding, embedding.norm)
    if isinstance(embedding.position, Sinusoidal):
        # Sinusoids have no end here; there they are a table.
        encodings = embedding.position.rows(positions)[:positions]  # [positions, D]
    elif embedding.position is not None:
        encodings = embedding.position.rows(0)  # the whole table
    elif "position_encodings" in vars(target):
        # A table is expected there unless positions are rotary or relative: zeros add nothing.
        encodings = torch.zeros(positions, embedding.table.weight.shape[1])
    else:
        return
    target.position_encodings.encodings = _array(encodings)


def _lm_head(target: Any, head: Any) -> None:
    if head.transform is not None or head.cap is not None:
        _refuse("a dense layer before the LM head, or soft-capping after it")
    target.projection.weight = _array(head.table.weight)
    if head.bias is not None:
        target.projection.bias = _array(head.bias)
    if head.scale != 1.0:
        target.scale_outputs = head.scale  # T5: d_model^-0.5


def _layers(target: Any, stack: Any, part: specs.Stack) -> None:
    if stack.final_norm is not None:
        _norm(target.layer_norm, stack.final_norm)
    for i, layer in enumerate(target.layer):
        block = stack.block(i)
        _attention(layer.self_attention, block.attention, part.block.attention)
        _positions(layer.self_attention, stack, part)
        if part.block.cross is not None:
            _attention(layer.attention, block.cross, part.block.cross)
        _feedforward(layer.ffn, block.feedforward)
        for target_norm, norm in zip(_target_norms(layer, part.block), _norms(block), strict=True):
            _norm(target_norm, norm)


def _positions(target: Any, stack: Any, part: specs.Stack) -> None:
    """Gives one layer's attention what all layers of ours share."""
    match part.block.position:
        case specs.T5Bias(distance=distance):
            target.relative_attention_bias = _array(stack.position.table)
            target.relative_attention_max_distance = numpy.int32(distance)
        case specs.Rope(scaling=specs.BandedScaling(factor, low, high)):
            # The library reads all three, but its class declares only two for this kind.
            vars(target).update(
                rotary_scaling_factor=numpy.float32(factor),
                rotary_low_freq_factor=numpy.float32(low),
                rotary_high_freq_factor=numpy.float32(high),
            )


def _target_norms(layer: Any, part: specs.Block) -> list[Any]:
    """The norms of a layer there, in the order of ours."""
    match part.residual:
        case specs.Parallel(1):
            return [layer.shared_layer_norm]
        case specs.Parallel():
            return [layer.input_layer_norm, layer.post_attention_layer_norm]
    cross = [] if part.cross is None else [layer.attention.layer_norm]
    return [layer.self_attention.layer_norm, *cross, layer.ffn.layer_norm]


def _norms(block: Any) -> list[Any]:
    residual = block.residual
    if "norms" in residual._modules:  # a parallel block
        return list(residual.norms)
    return [sublayer.norm for sublayer in residual.each]


def _attention(target: Any, attention: Any, part: specs.Attention) -> None:
    projection = attention.project
    if "qkv" in projection._modules:  # self-attention, in one matrix there too
        linears = [projection.qkv, attention.output]
    else:
        linears = [projection.q, projection.kv, attention.output]
    for target_linear, linear in zip(target.linear, linears, strict=True):
        _linear(target_linear, linear)
    if part.scale is not None:  # otherwise 1/√d_k, there too
        target.queries_scale = part.scale


def _feedforward(target: Any, feedforward: Any) -> None:
    _linear(target.linear_1, feedforward.outer)
    if "linear_0_noact" not in vars(target):
        _linear(target.linear_0, feedforward.inner)
        return
    # Gated: our inner matrix holds the gate, then the values.
    halves = (target.linear_0, target.linear_0_noact)
    for half, weight in zip(halves, feedforward.inner.weight.chunk(2), strict=True):
        half.weight = _array(weight)
    if feedforward.inner.bias is not None:
        for half, bias in zip(halves, feedforward.inner.bias.chunk(2), strict=True):
            half.bias = _array(bias)


def _linear(target: Any, linear: Any) -> None:
    target.weight = _array(linear.weight)
    bias = linear.full_bias()  # with zeros for q, k or v that have none
    if bias is not None:
        target.bias = _array(bias)


def _norm(target: Any, norm: Any) -> None:
    if "beta" not in vars(target):  # RMSNorm
        target.gamma = _array(norm.weight + norm.offset)  # Gemma's offset is 1
        return
    target.gamma = _array(norm.weight)
    target.beta = _array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().numpy()


# ------------------------------------------------------------------ Whisper


def _speech_model(
    ct2: Any, folder: Path, model: EncoderDecoder, part: specs.EncoderDecoder
) -> tuple[Any, Vocabularies]:
    """Whisper: its specification there has no options, so everything must be as OpenAI's."""
    for stack in (part.encoder, part.decoder):
        if not _is_whisper(stack):
            _refuse("speech models other than Whisper")
    front_end = model.source
    tokens = model.target
    assert isinstance(front_end, Spectrogram)
    assert isinstance(tokens, Embedding)
    assert front_end.position is not None
    assert tokens.position is not None
    if front_end.scales is not None:
        _refuse("several time scales of sound")
    whisper = ct2.specs.WhisperSpec(
        part.encoder.layers,
        part.encoder.block.attention.heads,
        part.decoder.layers,
        part.decoder.block.attention.heads,
    )
    _convolution(whisper.encoder.conv1, front_end.first)
    _convolution(whisper.encoder.conv2, front_end.second)
    whisper.encoder.position_encodings.encodings = _array(front_end.position.rows(0))
    whisper.decoder.position_encodings.encodings = _array(tokens.position.rows(0))
    whisper.decoder.embeddings.weight = _array(tokens.table.weight)
    _layers(whisper.encoder, model.encoder, part.encoder)
    _layers(whisper.decoder, model.decoder, part.decoder)
    _lm_head(whisper.decoder, model.head)
    vocabulary = _vocabulary(folder, part.target_tokens.vocabulary)
    whisper.register_vocabulary(vocabulary)
    _whisper_config(whisper.config, folder, part)
    return whisper, (vocabulary, vocabulary)


def _is_whisper(stack: specs.Stack) -> bool:
    block = stack.block
    layer_norm = specs.LayerNorm(1e-5)
    return (
        isinstance(block.feedforward, specs.FeedForward)
        and block.feedforward.activation == "gelu"
        and isinstance(block.residual, specs.PreNorm)
        and block.norm == layer_norm
        and stack.final == layer_norm
    )


def _convolution(target: Any, convolution: Any) -> None:
    target.weight = _array(convolution.weight)
    target.bias = _array(convolution.bias)


def _whisper_config(config: Any, folder: Path, part: specs.EncoderDecoder) -> None:
    """Suppressed tokens, language tokens, and the heads that align words with the sound."""
    generation = folders.read_generation_config(folder) or {}
    config.suppress_ids = generation.get("suppress_tokens") or []
    config.suppress_ids_begin = generation.get("begin_suppress_tokens") or []
    config.lang_ids = sorted((generation.get("lang_to_id") or {}).values())
    # OpenAI's default for models without a list: all heads of the upper half of the layers.
    layers = range(part.decoder.layers // 2, part.decoder.layers)
    heads = range(part.decoder.block.attention.heads)
    upper_half = [(layer, head) for layer in layers for head in heads]
    config.alignment_heads = generation.get("alignment_heads") or upper_half
