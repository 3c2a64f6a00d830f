"""BLEU, chrF and exact match of translations, by sacreBLEU, with its signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import DataError, SettingError


@dataclass(frozen=True)
class TranslationScore:
    """Corpus-level scores from 0 to 100.

    A signature says how sacreBLEU computed a score (Post, 2018): only scores with equal signatures
    can be compared.
    """

    bleu: float
    chrf: float
    exact_match: float
    signature: str  # of BLEU
    chrf_signature: str


def translation_score(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a"
) -> TranslationScore:
    """Scores of `hypotheses` against one reference each.

    `tokenize` is the name of one of sacreBLEU's tokenizers (13a, none, intl, ...).
    """
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
        # `force` only silences a warning: already tokenized text is the caller's choice, and the
        # signature says so.
        bleu = BLEU(tokenize=tokenize, force=True)
    except (AssertionError, KeyError, ValueError):
        tokenizers = ", ".join(sorted(BLEU.TOKENIZERS))
        raise SettingError(
            f"sacreBLEU has no tokenizer {tokenize!r}", f"known: {tokenizers}"
        ) from None
    chrf = CHRF()
    exact = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return TranslationScore(
        # sacreBLEU takes a list of reference sets; here there is one.
        bleu=bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf=chrf.corpus_score(list(hypotheses), [list(references)]).score,
        exact_match=100.0 * exact / max(1, len(references)),
        signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )
