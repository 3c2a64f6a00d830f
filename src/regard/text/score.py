"""How good translations are: sacreBLEU, chrF, exact match. Scores run from 0 to 100 and carry their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import DataError, SettingError


@dataclass(frozen=True)
class Score:
    bleu: float
    chrf: float
    exact_match: float
    signature: str
    chrf_signature: str


@dataclass(frozen=True)
class Surprise:
    """How well text was foreseen: −log p a token in nats, exp of that, and of how many tokens."""

    loss: float
    perplexity: float
    tokens: int


def score(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Corpus scores of `hypotheses` against one reference each; `tokenize` as sacreBLEU names it (13a, none, intl, …)."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses)} translations but {len(references)} references",
            "give files with the same number of lines",
        )
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise SettingError("scoring needs the package sacrebleu", "pip install sacrebleu") from None
    try:
        # `force` only silences a warning: already tokenised text is the caller's choice, and it is in the signature.
        bleu = BLEU(tokenize=tokenize, force=True)
    except (AssertionError, KeyError, ValueError):
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise SettingError(f"sacreBLEU has no tokenizer {tokenize!r}", f"known: {known}") from None
    chrf = CHRF()
    same = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return Score(
        bleu=bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf=chrf.corpus_score(list(hypotheses), [list(references)]).score,
        exact_match=100.0 * same / max(1, len(references)),
        signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )
