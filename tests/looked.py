"""Small random models of every wiring, with words, for the tests of looking inside."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.builder import build
from regard.core import projection
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.mixers import scaled_dot_product_attention
from regard.core.mixers.linear_attention import LinearAttention as LinearMixer
from regard.data.generated.builtin import sentences
from regard.data.text.tokenizer import Between, Tokenizer
from regard.data.text.tokenizer_training import train_tokenizer
from regard.decode.batch_decoding import SpecialTokens
from regard.families.encoder_decoders.transformer import transformer
from regard.models import Model, Translator
from regard.wirings.core_model import CoreModel

TEXT, TARGET = "The dog sees a small cat.", "Der Hund sieht eine kleine Katze."


def tokenizer() -> Tokenizer:
    pairs = list(islice(sentences("train"), 60)) + list(
        islice(sentences("test", pronouns=True), 40)
    )
    texts = [text for s in pairs for text in (s.source, s.target)] + [TEXT, TARGET]
    return train_tokenizer(texts, "words", 2000)


WORDS = tokenizer()
UNFRAMED = WORDS.with_framing(Between())  # no end token behind a text


def sharpened(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "table" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))


def translator(seed: int = 0, **changes: object) -> Translator:
    torch.manual_seed(seed)
    options = {"d_model": 24, "d_ff": 32, "heads": 3, "layers": 2, "dropout": 0.0} | changes
    description = transformer(len(WORDS), len(WORDS), **options)  # type: ignore[arg-type]
    model = build(description).eval()
    sharpened(model)
    return Translator(model, description, WORDS, WORDS, WORDS.required_token_id("bos"))


class Tokenized(Model):
    """Any core model with a tokenizer, by default that of these tests without special tokens."""

    accepts_text = True

    def __init__(
        self,
        core: CoreModel,
        description: spec.Model,
        tokenizer: Tokenizer = UNFRAMED,
        special_tokens: SpecialTokens | None = None,
    ) -> None:
        super().__init__(core, description)
        self.words = tokenizer
        self.special_tokens = special_tokens

    @property
    def input_tokenizer(self) -> Tokenizer:
        return self.words


ATTENTION = spec.Attention(4, 6, 6, groups=2)
BLOCK = spec.Block(
    ATTENTION, spec.GatedFeedForward(20), residual=spec.PreNorm(), norm=spec.RMSNorm(), dropout=0.0
)


LINEAR = spec.Block(
    spec.Attention(4, 6, 6, mixer=spec.LinearAttention()),
    spec.GatedFeedForward(20),
    residual=spec.PreNorm(),
    norm=spec.RMSNorm(),
    dropout=0.0,
)


def writer(
    pattern: spec.MaskPattern | None = None,
    position: spec.StackPosition | None = None,
    block: spec.Block = BLOCK,
) -> Tokenized:
    """A language model with grouped keys."""
    torch.manual_seed(1)
    stack = spec.Stack.of(
        2, block, pattern or spec.CausalMask(), position or spec.Rope(), final=spec.RMSNorm()
    )
    description = spec.Decoder(24, spec.Tokens(len(WORDS), None, dropout=0.0), stack)
    model = build(description).eval()
    sharpened(model)
    special_tokens = SpecialTokens(0, None, WORDS.required_token_id("eos"))
    return Tokenized(model, description, special_tokens=special_tokens)


def reader(position: spec.StackPosition | None = None, *heads: spec.Head) -> Tokenized:
    torch.manual_seed(2)
    tokens = spec.Tokens(len(WORDS), spec.LearnedPosition(64), dropout=0.0, norm=spec.LayerNorm())
    stack = spec.Stack.of(2, BLOCK, position=position)
    description = spec.Encoder(24, tokens, stack, heads or (spec.LMHead(),))
    model = build(description).eval()
    sharpened(model)
    bos = WORDS.required_token_id("bos")
    eos = WORDS.required_token_id("eos")
    return Tokenized(model, description, WORDS.with_framing(Between((bos,), (eos,))))


MODELS: dict[str, Callable[[], Model]] = {
    "translator": translator,
    "pre-norm translator": lambda: translator(residual=spec.PreNorm(), layers=3),
    "writer": writer,
    "window": lambda: writer(spec.CausalMask(3)),
    "linear": lambda: writer(block=LINEAR),
    "alibi": lambda: writer(position=spec.Alibi()),
    "reader": reader,
    "buckets": lambda: reader(spec.T5Bias(8, 20)),
    "distances": lambda: reader(spec.Disentangled(7)),
    "classifier": lambda: reader(None, spec.Pool(), spec.ClassifierHead(3)),
}


def target_of(model: Model) -> str | None:
    """The target that an encoder–decoder is given in the tests; other models have none."""
    return TARGET if isinstance(model, Translator) else None


def explicit(model: torch.nn.Module) -> list[Tensor]:
    """Has every mixer work as it is written down, with all weights at once, and collects those it mixes with."""
    recorded: list[Tensor] = []

    def kernel(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask,
        scale: float,
        dropout: float,
        bias: ScoreBias | None = None,
    ) -> Tensor:
        added = None if bias is None else bias.tensor(mask)
        recorded.append(
            scaled_dot_product_attention.attention_weights(q, k, mask.allowed, scale, added)
        )
        return recorded[-1] @ projection.per_query_head(v, q.shape[1])

    def summed(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask,
        bias: object = None,
        cache: object = None,
    ) -> Tensor:
        shares = (
            (functional.elu(q) + 1)
            @ projection.per_query_head(functional.elu(k) + 1, q.shape[1]).mT
            * mask.allowed
        )
        recorded.append(shares / shares.sum(dim=-1, keepdim=True))
        return recorded[-1] @ projection.per_query_head(v, q.shape[1])

    for part in model.modules():
        if isinstance(part, scaled_dot_product_attention.SoftmaxAttention):
            part.kernel = kernel
        elif isinstance(part, LinearMixer):
            part.forward = summed  # type: ignore[method-assign]
    return recorded


# ------------------------------------------------------------------ pictures and sound


def save_sensing(name: str, folder: Path) -> Path:
    """Tiny random models of other libraries that see (vit, clip) or hear (wav2vec2, whisper), with what they need beside."""
    import transformers

    torch.manual_seed(0)
    model: Any
    config: Any
    sizes: dict[str, Any] = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 31,
    }
    image: dict[str, Any] = {
        **sizes,
        "image_size": 30,
        "patch_size": 4,
    }  # 7 patches a side, and two pixels that are in none
    preprocessor: dict[str, Any] = {}
    match name:
        case "vit":
            model = transformers.ViTForImageClassification(
                transformers.ViTConfig(**image | {"num_labels": 3})
            )
            preprocessor = {
                "image_processor_type": "ViTImageProcessor",
                "size": {"height": 30, "width": 30},
            }
        case "clip":
            text = {
                **sizes,
                "vocab_size": 37,
                "bos_token_id": 35,
                "eos_token_id": 36,
                "max_position_embeddings": 13,
            }
            config = transformers.CLIPConfig(
                text_config=text, vision_config=image, projection_dim=9
            )
            model = transformers.CLIPModel(config)
            square = {"height": 30, "width": 30}
            preprocessor = {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 30},
                "crop_size": square,
            }
        case "wav2vec2":
            waves: dict[str, Any] = {
                "conv_dim": [8] * 7,
                "num_conv_pos_embeddings": 6,
                "num_conv_pos_embedding_groups": 2,
            }
            model = transformers.Wav2Vec2ForCTC(
                transformers.Wav2Vec2Config(vocab_size=11, **sizes, **waves)
            )
        case _:
            ids: dict[str, Any] = {
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "decoder_start_token_id": 1,
            }
            layers: dict[str, Any] = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (
                ("layers", 2), ("attention_heads", 4), ("ffn_dim", 31))}  # fmt: skip
            places: dict[str, Any] = {
                "num_mel_bins": 20,
                "max_source_positions": 50,
                "max_target_positions": 12,
            }
            config = transformers.WhisperConfig(
                vocab_size=23, d_model=24, **layers, **ids, **places, begin_suppress_tokens=None
            )
            model = transformers.WhisperForConditionalGeneration(config)
            words = {
                word: i
                for i, word in enumerate(
                    ["<pad>", "<s>", "</s>", "<unk>", *(f"w{n}" for n in range(19))]
                )
            }
            tokenizer_ = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
            tokenizer_.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
            folder.mkdir(parents=True, exist_ok=True)
            tokenizer_.save(str(folder / "tokenizer.json"))
    sharpened(model)
    model.save_pretrained(folder)
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def png(width: int = 40, height: int = 30) -> bytes:
    """A picture with noise in it."""
    from PIL import Image

    file_ = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(noise).save(file_, "PNG")
    return file_.getvalue()


def wav(seconds: float = 0.5, rate: int = 16_000) -> bytes:
    """A falling tone."""
    time = np.arange(int(seconds * rate)) / rate
    file_ = io.BytesIO()
    with wave.open(file_, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(
            (np.sin(2 * np.pi * (900 - 600 * time) * time) * 20_000).astype("<i2").tobytes()
        )
    return file_.getvalue()
