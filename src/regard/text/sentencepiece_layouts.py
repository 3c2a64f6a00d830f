"""How families number the pieces of a SentencePiece file, and what they put around a text.

The file numbers its pieces from 0; fairseq's models have four tokens of their own there, PEGASUS a hundred, T5 a hundred more
behind. A family is one `Layout`; which one a folder's is, its tokenizer_config.json or config.json says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers, processors

from regard.errors import DataError, did_you_mean
from regard.text.sentencepiece import CONTROL, UNKNOWN, UNUSED, Pieces, read_pieces, tokenizer

Settings = Mapping[str, Any]  # of tokenizer_config.json
_AROUND = ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
_DOUBLED = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
_ENDED = ("$A </s>", "$A </s> $B </s>")
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO "
    "ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MORE_LANGUAGES = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN "
    "th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
MOST_EXTRA = (
    10_000  # more tokens beside the pieces than any model has: the number in a damaged file
)


@dataclass(frozen=True)
class Layout:
    """`front` stands in place of the first `dropped` pieces, `behind` after the last. `frame` is what is put around a text
    and around two; {language} in it is the folder's source language."""

    front: tuple[str, ...] = ()
    dropped: int = 0
    behind: tuple[str, ...] = ()
    frame: tuple[str, str] | None = None
    folded: bool = (
        False  # ALBERT: accents and capitals are taken away, unless the folder says otherwise
    )
    begun: bool = False  # LLaMA: whether a text begins and ends with tokens, the folder says


LAYOUTS: dict[str, Layout] = {
    "t5": Layout(frame=_ENDED),
    "albert": Layout(frame=_AROUND, folded=True),
    "big_bird": Layout(frame=_AROUND),
    "deberta-v2": Layout(behind=("[MASK]",), frame=_AROUND),
    "xlm-roberta": Layout(_FAIRSEQ, 3, ("<mask>",), _DOUBLED),
    "camembert": Layout(
        ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), 1, ("<mask>",), _DOUBLED
    ),
    "mbart": Layout(
        _FAIRSEQ, 3, (*_LANGUAGES.split(), "<mask>"), ("$A </s> {language}", "$A $B </s> {language}")
    ),
    "mbart50": Layout(
        _FAIRSEQ, 3, (*_LANGUAGES.split(), *_MORE_LANGUAGES.split(), "<mask>"),
        ("{language} $A </s>", "{language} $A $B </s>"),
    ),
    "pegasus": Layout(("<pad>", "</s>", "<mask_1>", "<mask_2>"), 2, frame=("$A </s>", "$A $B </s>")),
    "llama": Layout(begun=True),
}  # fmt: skip
_SAME = {
    "mt5": "t5", "umt5": "t5", "bigbird": "big_bird", "debertav2": "deberta-v2", "xlmroberta": "xlm-roberta",
    "gemma": "llama", "mistral": "llama",
}  # fmt: skip
FILES = ("spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")
SIDES = ("source.spm", "target.spm")
_MARIAN = ("<pad>", "</s>", "<unk>")
_AGAIN = "fetch the folder again"


def holds_sentencepiece(folder: Path) -> bool:
    """Whether there is a file of SentencePiece that can be opened."""
    return holds_source_and_target(folder) or any((folder / name).is_file() for name in FILES)


def holds_source_and_target(folder: Path) -> bool:
    """Whether source and target have pieces of their own."""
    return all((folder / name).is_file() for name in (*SIDES, "vocab.json"))


def open_sentencepiece(folder: Path, config: Settings, settings: Settings) -> tokenizers.Tokenizer:
    """The tokenizer of a folder that holds pieces only. `config` is the model's, `settings` the tokenizer's."""
    path = next(folder / name for name in FILES if (folder / name).is_file())
    layout, file = _layout(path, config, settings), read_pieces(path)
    if settings.get("split_by_punct"):
        raise DataError(
            f"{folder}: split_by_punct is not understood", "put its tokenizer.json there"
        )
    if layout.begun and settings.get("add_prefix_space") is False:
        file = replace(file, prefix=False)
    front, behind = _numbered(layout, settings)
    own = _found(file)
    vocabulary = [*((token, 0.0) for token in front), *own[layout.dropped :]]
    known = {token for token, _ in vocabulary}
    vocabulary += [(token, 0.0) for token in behind if token not in known]
    unknown = next(
        (i for i, (token, _) in enumerate(vocabulary) if token in (own[file.unknown][0], "<unk>")),
        None,
    )
    if len({token for token, _ in vocabulary}) != len(vocabulary) or unknown is None:
        raise DataError(
            f"{path} does not begin with the pieces that models of its kind have", _AGAIN
        )
    once = layout.begun and settings.get("legacy") is False
    backend = tokenizer(file, vocabulary, unknown, _folds(layout, settings), once=once)
    numbered = {token for token, _ in vocabulary}
    marks = [
        piece.text
        for piece in file.pieces
        if piece.kind in (UNKNOWN, CONTROL) and piece.text in numbered
    ]
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in (*front, *marks, *behind)]
    )
    if (template := _frame(path, layout, marks, settings)) is not None:
        named = [(name, backend.token_to_id(name)) for name in _names(template)]
        if missing := [name for name, number in named if number is None]:
            raise DataError(f"{path} has no piece {missing[0]!r}", _AGAIN)
        backend.post_processor = processors.TemplateProcessing(
            single=template[0], pair=template[1], special_tokens=named
        )
    return backend


def open_side(folder: Path, side: str, numbers: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Marian's: each side has its own pieces, and a vocabulary, which both may share, their numbers. A piece without a
    number is left out. Tokens such as >>fra<<, which say what to translate into, are no pieces."""
    file = read_pieces(folder / side)
    order = sorted(numbers, key=lambda token: str(numbers[token]).zfill(9))
    if [numbers[token] for token in order] != list(range(len(order))) or not {
        "<unk>",
        "</s>",
    } <= numbers.keys():
        raise DataError(f"the vocabulary of {folder / side} is damaged", _AGAIN)
    scores = dict(_found(file))
    codes = [token for token in order if token.startswith(">>") and token.endswith("<<")]
    # A character that only the other side has a piece for is found by its number all the same, as what is unknown would be.
    rare = min(scores.values()) - 10
    scores = (
        dict.fromkeys((*_MARIAN, *codes), 0.0) | {t: rare for t in order if len(t) == 1} | scores
    )
    vocabulary = [(t, scores[t]) if t in scores else (_hidden(t), 0.0) for t in order]
    backend = tokenizer(file, vocabulary, numbers["<unk>"])
    backend.add_tokens([AddedToken(token, rstrip=True, normalized=False) for token in codes])
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in _MARIAN if t in numbers]
    )
    end = [("</s>", numbers["</s>"])]
    backend.post_processor = processors.TemplateProcessing(
        single=_ENDED[0], pair=_ENDED[1], special_tokens=end
    )
    return backend


def _found(file: Pieces) -> list[tuple[str, float]]:
    return [(p.text if p.kind != UNUSED else _hidden(p.text), p.score) for p in file.pieces]


def _hidden(token: str) -> str:
    """Behind a space, which no text has any more when it is cut, a token keeps its number and is never found."""
    return f" {token}"


def _layout(path: Path, config: Settings, settings: Settings) -> Layout:
    """By the name of the tokenizer's class, or else of the model."""
    said = [
        settings.get("tokenizer_class"),
        config.get("tokenizer_class"),
        config.get("model_type"),
    ]
    for name in (
        str(one).removesuffix("Fast").removesuffix("Tokenizer").lower() for one in said if one
    ):
        if _SAME.get(name, name) in LAYOUTS:
            return LAYOUTS[_SAME.get(name, name)]
    kind = str(config.get("model_type"))
    raise DataError(
        f"how a {kind} numbers SentencePiece's {path} is not known", did_you_mean(kind, LAYOUTS)
    )


def _numbered(layout: Layout, settings: Settings) -> tuple[list[str], list[str]]:
    """The tokens before and behind the pieces: T5 and PEGASUS have as many as the folder says."""
    front, behind = list(layout.front), list(layout.behind)
    if layout is LAYOUTS["t5"]:
        behind += [f"<extra_id_{i}>" for i in reversed(range(_count(settings, "extra_ids", 100)))]
    if layout is LAYOUTS["pegasus"]:
        front += [f"<unk_{i}>" for i in range(2, _count(settings, "offset", 103))]
    return front, behind


def _count(settings: Settings, key: str, usual: int) -> int:
    said = settings.get(key, usual)
    if not isinstance(said, int) or not 0 <= said <= MOST_EXTRA:
        raise DataError(
            f"tokenizer_config.json: {key} is {said!r}", f"write a number, such as {usual}"
        )
    return said


def _folds(layout: Layout, settings: Settings) -> Sequence[normalizers.Normalizer]:
    lower = [normalizers.Lowercase()] if settings.get("do_lower_case", layout.folded) else []
    if not layout.folded:
        return lower
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    accents = (
        []
        if settings.get("keep_accents", False)
        else [normalizers.NFKD(), normalizers.StripAccents()]
    )
    return [*quotes, *accents, *lower]


def _frame(
    path: Path, layout: Layout, marks: list[str], settings: Settings
) -> tuple[str, str] | None:
    if layout.begun:
        first, last = (
            next((n for n in names if n in marks), None)
            for names in (("<s>", "<bos>"), ("</s>", "<eos>"))
        )
        one = [first] if first and settings.get("add_bos_token", True) else []
        end = [last] if last and settings.get("add_eos_token", False) else []
        return (
            (" ".join([*one, "$A", *end]), " ".join([*one, "$A", *end, *one, "$B", *end]))
            if one or end
            else None
        )
    if layout.frame is None:
        return None
    language = settings.get("src_lang") or "en_XX"
    if language not in (*_LANGUAGES.split(), *_MORE_LANGUAGES.split()):
        raise DataError(
            f"{path.parent} says src_lang {language!r}", "write one of its languages, such as en_XX"
        )
    single, pair = (each.replace("{language}", str(language)) for each in layout.frame)
    return single, pair


def _names(template: tuple[str, str]) -> list[str]:
    parts = (part.partition(":")[0] for one in template for part in one.split())
    return [*dict.fromkeys(part for part in parts if not part.startswith("$"))]
