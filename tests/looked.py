"""Small random models of every wiring, with words, for the tests of looking inside."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch

from regard import spec
from regard.api import Translator
from regard.build import build
from regard.data.builtin import sentences
from regard.decode.search import Ends
from regard.family.vaswani import transformer
from regard.look import Subject, Words
from regard.text.tokenizer import Tokenizer

TEXT, TARGET = "The dog sees a small cat.", "Der Hund sieht eine kleine Katze."


def tokenizer() -> Tokenizer:
    pairs = list(islice(sentences("train"), 60)) + list(islice(sentences("test", pronouns=True), 40))
    texts = [text for s in pairs for text in (s.source, s.target)] + [TEXT, TARGET]
    return Tokenizer.learn(texts, "words", 2000)


WORDS = tokenizer()


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
    return Translator(model, description, WORDS, WORDS, WORDS.bos)


ATTENTION = spec.Attention(4, 6, 6, groups=2)
BLOCK = spec.Block(ATTENTION, spec.Gated(20), residual=spec.PreNorm(), norm=spec.RmsNorm(), dropout=0.0)


def writer(pattern: spec.Pattern | None = None, position: spec.StackPosition | None = None) -> Subject:
    """A language model with grouped keys."""
    torch.manual_seed(1)
    stack = spec.Stack(2, BLOCK, pattern or spec.Causal(), position or spec.Rope(), final=spec.RmsNorm())
    model = build(spec.Decoder(24, spec.Tokens(len(WORDS), None, dropout=0.0), stack)).eval()
    sharpened(model)
    return Subject(model, Words.of(WORDS), ends=Ends(WORDS.pad, None, WORDS.eos))


def reader(position: spec.StackPosition | None = None, **top: object) -> Subject:
    torch.manual_seed(2)
    tokens = spec.Tokens(len(WORDS), spec.Learned(64), dropout=0.0, norm=spec.LayerNorm())
    stack = spec.Stack(2, BLOCK, position=position)
    model = build(spec.Encoder(24, tokens, stack, **(top or {"head": spec.LanguageHead()}))).eval()  # type: ignore[arg-type]
    sharpened(model)
    return Subject(model, Words.of(WORDS, before=[WORDS.bos], after=[WORDS.eos]))


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "translator": lambda: translator().subject(),
    "pre-norm translator": lambda: translator(residual=spec.PreNorm(), layers=3).subject(),
    "writer": writer,
    "window": lambda: writer(spec.Causal(3)),
    "alibi": lambda: writer(position=spec.Alibi()),
    "reader": reader,
    "buckets": lambda: reader(spec.Buckets(8, 20)),
    "distances": lambda: reader(spec.Disentangled(7)),
    "classifier": lambda: reader(pool=spec.Pool(), labels=spec.Labels(3)),
}
