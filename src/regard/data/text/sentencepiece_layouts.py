"""How model families number the pieces of a SentencePiece model, and their templates.

The file numbers its pieces from 0. fairseq's models have four tokens of their own in front, PEGASUS
a hundred, T5 a hundred more at the end. Each family is one `Layout`; a folder's
tokenizer_config.json or config.json says which one it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers, processors

from regard.data.text.sentencepiece import (
    CONTROL,
    FETCH_AGAIN,
    UNKNOWN,
    UNUSED,
    SentencePieceModel,
    build_tokenizer,
    read_sentencepiece,
)
from regard.system.arguments import is_whole
from regard.system.errors import DataError, did_you_mean

Settings = Mapping[str, Any]  # of tokenizer_config.json

# Templates of one text and of a pair.
_BERT_TEMPLATE = ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
_ROBERTA_TEMPLATE = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
_T5_TEMPLATE = ("$A </s>", "$A </s> $B </s>")
# fairseq's dictionary begins with these; SentencePiece's own first three are dropped.
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
_MBART_CODES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
_MBART50_CODES = (
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
    "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
_MBART_LANGUAGES = tuple(_MBART_CODES.split())
_MBART50_LANGUAGES = (*_MBART_LANGUAGES, *_MBART50_CODES.split())
# More tokens besides the pieces than any model has: such a number is that of a damaged file.
MOST_EXTRA = 10_000
# Before a token that keeps its id but is never produced: a normalized text has no spaces, they have
# become ▁.
UNREACHABLE = " "


@dataclass(frozen=True)
class Layout:
    """The vocabulary and the template of a family.

    The `front` tokens replace the first `dropped` pieces, the `behind` tokens follow the last one.
    {language} in the template is the folder's source language.
    """

    front: tuple[str, ...] = ()
    dropped: int = 0
    behind: tuple[str, ...] = ()
    template: tuple[str, str] | None = None
    folds_case: bool = False  # ALBERT: lower case without accents, unless the folder says otherwise
    optional_ends: bool = False  # LLaMA: the folder says whether a text has <s> and </s>


LAYOUTS: dict[str, Layout] = {
    "t5": Layout(template=_T5_TEMPLATE),
    "albert": Layout(template=_BERT_TEMPLATE, folds_case=True),
    "big_bird": Layout(template=_BERT_TEMPLATE),
    "deberta-v2": Layout(behind=("[MASK]",), template=_BERT_TEMPLATE),
    "xlm-roberta": Layout(_FAIRSEQ, 3, ("<mask>",), _ROBERTA_TEMPLATE),
    # transformers calls ids that nothing uses NOTUSED.
    "camembert": Layout(
        front=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
        dropped=1,
        behind=("<mask>",),
        template=_ROBERTA_TEMPLATE,
    ),
    # mBART's language code follows the source, mBART-50's precedes it.
    "mbart": Layout(
        front=_FAIRSEQ,
        dropped=3,
        behind=(*_MBART_LANGUAGES, "<mask>"),
        template=("$A </s> {language}", "$A $B </s> {language}"),
    ),
    "mbart50": Layout(
        front=_FAIRSEQ,
        dropped=3,
        behind=(*_MBART50_LANGUAGES, "<mask>"),
        template=("{language} $A </s>", "{language} $A $B </s>"),
    ),
    "pegasus": Layout(
        front=("<pad>", "</s>", "<mask_1>", "<mask_2>"),
        dropped=2,
        template=("$A </s>", "$A $B </s>"),
    ),
    "llama": Layout(optional_ends=True),
}
# Names of model types and tokenizer classes (in lower case) → the layout that they share.
_SAME_LAYOUT = {
    "mt5": "t5",
    "umt5": "t5",
    "bigbird": "big_bird",
    "debertav2": "deberta-v2",
    "xlmroberta": "xlm-roberta",
    "gemma": "llama",
    "gemma2": "llama",
    "gemma3_text": "llama",
    "mistral": "llama",
}
# Names of the file in folders of T5 and ALBERT, DeBERTa, XLM-R and mBART, LLaMA.
FILES = ("spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model")
SIDES = ("source.spm", "target.spm")  # Marian
_MARIAN_SPECIALS = ("<pad>", "</s>", "<unk>")


def holds_sentencepiece(folder: Path) -> bool:
    """Whether there is a SentencePiece model that can be opened."""
    return holds_source_and_target(folder) or any((folder / name).is_file() for name in FILES)


def holds_source_and_target(folder: Path) -> bool:
    """Whether source and target have a SentencePiece model each (Marian)."""
    return all((folder / name).is_file() for name in (*SIDES, "vocab.json"))


# --- one SentencePiece model ---


def open_sentencepiece(folder: Path, config: Settings, settings: Settings) -> tokenizers.Tokenizer:
    """The tokenizer of a folder that has a SentencePiece model only.

    `config` is the model's config.json, `settings` the tokenizer_config.json.
    """
    path = next(folder / name for name in FILES if (folder / name).is_file())
    layout = _layout(path, config, settings)
    file = read_sentencepiece(path)
    if settings.get("split_by_punct"):
        raise DataError(
            f"{folder}: split_by_punct is not understood", "put its tokenizer.json there"
        )
    if layout.optional_ends and settings.get("add_prefix_space") is False:
        file = replace(file, prefix=False)
    front, behind = _extra_tokens(layout, settings)
    vocabulary, unknown = _vocabulary(path, file, layout, front, behind)
    # transformers' "legacy" LLaMA tokenizer puts a space before each part between special tokens.
    prefix_once = layout.optional_ends and settings.get("legacy") is False
    backend = build_tokenizer(
        file, vocabulary, unknown, _case_folding(layout, settings), prefix_once=prefix_once
    )
    tokens = {token for token, _ in vocabulary}
    control = [
        piece.text
        for piece in file.pieces
        if piece.kind in (UNKNOWN, CONTROL) and piece.text in tokens
    ]
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in (*front, *control, *behind)]
    )
    template = _template(path, layout, control, settings)
    if template is not None:
        # Each once, without its segment.
        parts = dict.fromkeys(part.partition(":")[0] for part in " ".join(template).split())
        names = [part for part in parts if not part.startswith("$")]
        ids = [(token, backend.token_to_id(token)) for token in names]
        missing = [token for token, i in ids if i is None]
        if missing:
            raise DataError(f"{path} has no piece {missing[0]!r}", FETCH_AGAIN)
        backend.post_processor = processors.TemplateProcessing(
            single=template[0], pair=template[1], special_tokens=ids
        )
    return backend


def _vocabulary(
    path: Path,
    file: SentencePieceModel,
    layout: Layout,
    front: Sequence[str],
    behind: Sequence[str],
) -> tuple[list[tuple[str, float]], int]:
    """Tokens and scores in the order of their ids, and the id of the unknown token."""
    pieces = _pieces(file)
    vocabulary = [*((token, 0.0) for token in front), *pieces[layout.dropped :]]
    tokens = {token for token, _ in vocabulary}
    vocabulary += [(token, 0.0) for token in behind if token not in tokens]
    names = [token for token, _ in vocabulary]
    unknown_names = (pieces[file.unknown][0], "<unk>")
    unknown = next((i for i, token in enumerate(names) if token in unknown_names), None)
    if len(set(names)) != len(names) or unknown is None:
        raise DataError(
            f"{path} does not begin with the pieces that models of its kind have", FETCH_AGAIN
        )
    return vocabulary, unknown


def _pieces(file: SentencePieceModel) -> list[tuple[str, float]]:
    return [
        (UNREACHABLE + piece.text if piece.kind == UNUSED else piece.text, piece.score)
        for piece in file.pieces
    ]


def _layout(path: Path, config: Settings, settings: Settings) -> Layout:
    """By the name of the tokenizer's class, or else of the model."""
    kind = str(config.get("model_type"))
    for name in (settings.get("tokenizer_class"), config.get("tokenizer_class"), kind):
        family = str(name).removesuffix("Fast").removesuffix("Tokenizer").lower()
        family = _SAME_LAYOUT.get(family, family)
        if family in LAYOUTS:
            return LAYOUTS[family]
    raise DataError(
        f"how a {kind} numbers SentencePiece's {path} is not known", did_you_mean(kind, LAYOUTS)
    )


def _extra_tokens(layout: Layout, settings: Settings) -> tuple[list[str], list[str]]:
    """The tokens before and after the pieces: T5 and PEGASUS have as many as the folder says."""
    front = list(layout.front)
    behind = list(layout.behind)
    counts = {"extra_ids": 100, "offset": 103}
    for key, default in counts.items():
        counts[key] = settings.get(key, default)
        if not is_whole(counts[key], most=MOST_EXTRA):
            raise DataError(
                f"tokenizer_config.json: {key} is {counts[key]!r}",
                f"write a number, such as {default}",
            )
    if layout is LAYOUTS["t5"]:  # sentinels, counted down
        behind += [f"<extra_id_{i}>" for i in reversed(range(counts["extra_ids"]))]
    if layout is LAYOUTS["pegasus"]:
        front += [f"<unk_{i}>" for i in range(2, counts["offset"])]
    return front, behind


def _case_folding(layout: Layout, settings: Settings) -> list[normalizers.Normalizer]:
    """What a family does to a text before SentencePiece's own normalization."""
    steps: list[normalizers.Normalizer] = []
    if layout.folds_case:
        # LaTeX's quotation marks, as ALBERT's own preprocessing has it.
        steps.append(normalizers.Replace("``", '"'))
        steps.append(normalizers.Replace("''", '"'))
        if not settings.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", layout.folds_case):
        steps.append(normalizers.Lowercase())
    return steps


# --- templates ---


def _template(
    path: Path, layout: Layout, control: Sequence[str], settings: Settings
) -> tuple[str, str] | None:
    """The templates of one text and of a pair; None if nothing is put around a text."""
    if layout.optional_ends:
        # LLaMA: <s> and </s> around each text, if the folder asks for them and the file has them.
        start = next((token for token in ("<s>", "<bos>") if token in control), None)
        end = next((token for token in ("</s>", "<eos>") if token in control), None)
        before = f"{start} " if start and settings.get("add_bos_token", True) else ""
        after = f" {end}" if end and settings.get("add_eos_token", False) else ""
        framed = f"{before}$A{after}"
        return (framed, f"{framed} {before}$B{after}") if before or after else None
    assert layout.template is not None
    language = settings.get("src_lang") or "en_XX"
    if language not in _MBART50_LANGUAGES:
        raise DataError(
            f"{path.parent} says src_lang {language!r}", "write one of its languages, such as en_XX"
        )
    single, pair = (text.replace("{language}", str(language)) for text in layout.template)
    return single, pair


# --- two SentencePiece models ---


def open_side(folder: Path, side: str, ids: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Marian's source or target tokenizer.

    Each side has pieces of its own; their `ids` are those of a vocabulary, which both sides may
    share. A piece without an id is left out. Language codes such as >>fra<<, which say what to
    translate into, are no pieces.
    """
    file = read_sentencepiece(folder / side)
    # As text, because a damaged file may have values that are no numbers.
    order = sorted(ids, key=lambda token: str(ids[token]).zfill(9))
    consecutive = [ids[token] for token in order] == list(range(len(order)))
    if not consecutive or "<unk>" not in ids or "</s>" not in ids:
        raise DataError(f"the vocabulary of {folder / side} is damaged", FETCH_AGAIN)
    codes = [token for token in order if token.startswith(">>") and token.endswith("<<")]
    pieces = dict(_pieces(file))
    # A character that only the other side has a piece for still gets its id, with the score that
    # the library gives to what is unknown.
    rare = min(pieces.values()) - 10
    # Later entries win: a piece of this side has its own score.
    scores = {
        **dict.fromkeys((*_MARIAN_SPECIALS, *codes), 0.0),
        **{token: rare for token in order if len(token) == 1},
        **pieces,
    }
    vocabulary = [
        (token, scores[token]) if token in scores else (UNREACHABLE + token, 0.0) for token in order
    ]
    backend = build_tokenizer(file, vocabulary, ids["<unk>"])
    backend.add_tokens([AddedToken(token, rstrip=True, normalized=False) for token in codes])
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token in _MARIAN_SPECIALS
            if token in ids
        ]
    )
    single, pair = _T5_TEMPLATE
    backend.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("</s>", ids["</s>"])]
    )
    return backend
