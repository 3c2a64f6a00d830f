"""Opening tokenizers from files.

A model folder in Hugging Face's layout holds one of these, and the first that is there is taken:

- `tokenizer.json`, the `tokenizers` library's own format;
- `vocab.txt` (WordPiece, BERT);
- SentencePiece's files (`spiece.model`, `source.spm`, ...);
- `vocab.json` and `merges.txt` (byte-level BPE, GPT-2, RoBERTa, CLIP);
- `vocab.json` alone, of letters (VITS).

From all but the first the same tokenizer is assembled here that transformers would make of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from regard.data.text.sentencepiece import CONVERT
from regard.data.text.sentencepiece_layouts import (
    SIDES,
    holds_sentencepiece,
    holds_source_and_target,
    open_sentencepiece,
    open_side,
)
from regard.data.text.tokenizer import (
    SPECIAL_TOKEN_NAMES,
    Role,
    Tokenizer,
    find_special_tokens,
    library_errors,
)
from regard.system import disk
from regard.system.errors import DataError

# How special tokens are called that a folder does not name. CLIP and GPT-2 have one token for
# several roles.
_FOLDER_TOKEN_NAMES: dict[Role, tuple[str, ...]] = {
    "pad": (*SPECIAL_TOKEN_NAMES["pad"], "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": (*SPECIAL_TOKEN_NAMES["unk"], "<|endoftext|>"),
    "bos": ("<s>", "<|startoftext|>"),
    "eos": ("</s>", "<eos>", "<|endoftext|>"),
}
# How CLIP splits a text into words before BPE.
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_GIVE_WHOLE = "give a whole file; fetch or learn it again"
# A private-use character in no vocabulary: a model whose unknown token is missing from its own
# vocabulary is noticed only when it meets one.
_NO_TOKEN = "\U0010fffd"


# --- one file ---


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a language model from tokenizer.json, or from what its folder holds instead.

    No special token is required of the file.
    """
    path = Path(path)
    if not path.exists() and holds_tokenizer(path.parent):
        return open_language_model_tokenizer(path.parent)
    return Tokenizer(_read_backend(path), origin=str(path)).for_prompts()


def load_translation_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a translation model from tokenizer.json."""
    return Tokenizer.for_translation(_read_backend(Path(path)), origin=str(path))


def translation_tokenizer_from_json(text: str, *, origin: str = "this tokenizer") -> Tokenizer:
    """The inverse of `Tokenizer.to_json`; `origin` names the text in error messages."""
    return Tokenizer.for_translation(_parse_tokenizer_json(text, origin), origin=origin)


def read_vocabulary(path: Path) -> dict[int, str]:
    """id → token of any tokenizer.json."""
    return {i: token for token, i in _read_backend(path).get_vocab().items()}


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    return _parse_tokenizer_json(disk.read_text(path, DataError), str(path))


def _parse_tokenizer_json(text: str, origin: str) -> tokenizers.Tokenizer:
    with library_errors(f"{origin} is not a usable tokenizer.json", _GIVE_WHOLE):
        backend = tokenizers.Tokenizer.from_str(text)
        backend.encode(_NO_TOKEN)  # fails here rather than on a user's text
    return backend


# --- a model folder ---


def open_encoder_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of an encoder's folder, with the special tokens that the folder names."""
    folder = Path(folder)
    backend, special_tokens, origin = open_backend(folder)
    tokenizer = Tokenizer(backend, special_tokens, origin=origin)
    if _spells(folder) and read_tokenizer_settings(folder).get("add_blank", True):
        tokenizer.blank = 0
    return tokenizer


def open_language_model_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a language model's folder: a text is framed as a prompt, without an end."""
    backend, _, origin = open_backend(folder)
    return Tokenizer(backend, origin=origin).for_prompts()


def open_translation_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target tokenizer of a translation model, which may be one."""
    backend, _, origin = open_backend(folder)
    source = Tokenizer.for_translation(backend, origin=origin)
    target_path = folder / "target_tokenizer.json"
    if target_path.exists():
        return source, load_translation_tokenizer(target_path)
    # SentencePiece files may give the target side a tokenizer of its own (Marian).
    if (folder / "tokenizer.json").is_file() or not holds_source_and_target(folder):
        return source, source
    vocabulary = _read_settings(folder / "target_vocab.json")
    with library_errors(f"the files of {folder} are not usable", _GIVE_WHOLE):
        target_backend = open_side(
            folder, SIDES[1], vocabulary or _read_settings(folder / "vocab.json")
        )
    return source, Tokenizer.for_translation(target_backend, origin=origin)


def holds_tokenizer(folder: Path) -> bool:
    """Whether there is a tokenizer that `open_backend` knows."""
    return (
        (folder / "tokenizer.json").is_file()
        or (folder / "vocab.txt").is_file()
        or ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file())
        or holds_sentencepiece(folder)
        or _spells(folder)
    )


def _spells(folder: Path) -> bool:
    """Whether its vocab.json is one of letters; Wav2Vec2's are written, and not read."""
    settings = _read_settings(folder / "tokenizer_config.json")
    return (folder / "vocab.json").is_file() and settings.get("tokenizer_class") == "VitsTokenizer"


def open_backend(folder: Path) -> tuple[tokenizers.Tokenizer, dict[Role, str], str]:
    """The tokenizer of a model folder, its special tokens by role, and the file it is from.

    A special token has the name that the folder gives it, or else one of the usual ones.
    """
    if not holds_tokenizer(folder):
        raise DataError(f"{folder} holds no tokenizer that can be opened here", CONVERT)
    settings = read_tokenizer_settings(folder)
    special_tokens = named_special_tokens(folder)
    origin = folder / "tokenizer.json"
    if origin.is_file():
        backend = _read_backend(origin)
        return backend, _with_usual_names(special_tokens, backend.get_vocab()), str(origin)
    open_files = _byte_level_bpe
    origin = folder / "vocab.json"
    if (folder / "vocab.txt").is_file():
        open_files = _wordpiece
        origin = folder / "vocab.txt"
    elif holds_sentencepiece(folder):
        open_files = _sentencepiece
        origin = folder
    elif _spells(folder):
        open_files = _letters
    with library_errors(f"{origin} is not a usable vocabulary", _GIVE_WHOLE):
        return *open_files(folder, settings, special_tokens), str(origin)


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The keys of special_tokens_map.json and tokenizer_config.json; the latter counts."""
    return {
        **_read_settings(folder / "special_tokens_map.json"),
        **_read_settings(folder / "tokenizer_config.json"),
    }


def named_special_tokens(folder: Path) -> dict[Role, str]:
    """Role → token, of the special tokens that a folder names."""
    settings = read_tokenizer_settings(folder)
    tokens = {role: token_content(settings.get(f"{role}_token")) for role in _FOLDER_TOKEN_NAMES}
    return {role: token for role, token in tokens.items() if token is not None}


def token_content(value: Any) -> str | None:
    """A token of tokenizer_config.json, which may be a string or an object with its options."""
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else None


def _read_settings(path: Path) -> dict[str, Any]:
    return disk.read_json_object(path, DataError)


def _with_usual_names(
    special_tokens: Mapping[Role, str], vocabulary: Mapping[str, int]
) -> dict[Role, str]:
    """The special tokens that a folder names, and those it has under their usual names."""
    return {**find_special_tokens(vocabulary, _FOLDER_TOKEN_NAMES), **special_tokens}


# --- from a vocabulary to a tokenizer ---


def _sentencepiece(
    folder: Path, settings: Mapping[str, Any], special_tokens: Mapping[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    if holds_source_and_target(folder):
        backend = open_side(folder, SIDES[0], _read_settings(folder / "vocab.json"))
    else:
        backend = open_sentencepiece(folder, _read_settings(folder / "config.json"), settings)
    names = _with_usual_names(special_tokens, backend.get_vocab())
    _add_tokens(backend, folder, settings, names)
    backend.encode(_NO_TOKEN)
    return backend, names


def _wordpiece(
    folder: Path, settings: Mapping[str, Any], special_tokens: Mapping[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """WordPiece from vocab.txt, one token a line."""
    # The line number is the id. Not `splitlines`: a token may be U+2028 or the like.
    lines = disk.read_text(folder / "vocab.txt", DataError).removesuffix("\n").split("\n")
    vocabulary = {line.strip(): i for i, line in enumerate(lines)}
    names = _with_usual_names(special_tokens, vocabulary)
    if names.get("cls") == "<cls>":
        return _residues(folder, settings, names, vocabulary)
    unknown = names.get("unk", "[UNK]")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),  # None: where lower case is asked for
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    _add_tokens(backend, folder, settings, names)
    cls = names["cls"]
    sep = names["sep"]
    if cls == "<s>":  # MPNet: WordPiece in RoBERTa's template
        backend.post_processor = _roberta_template(backend, cls, sep)
    else:
        backend.post_processor = processors.TemplateProcessing(
            # `:0` and `:1` are segment ids.
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
        )
    return backend, names


def _residues(
    folder: Path,
    settings: Mapping[str, Any],
    names: dict[Role, str],
    vocabulary: Mapping[str, int],
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """ESM's amino acids: every token of vocab.txt wherever it stands, with or without spaces."""
    backend = tokenizers.Tokenizer(models.WordLevel(dict(vocabulary), names["unk"]))
    tokens = "|".join(sorted(map(re.escape, vocabulary), key=len, reverse=True))
    residues = pre_tokenizers.Split(Regex(tokens), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), residues])
    _add_tokens(backend, folder, settings, names)
    cls = names["cls"]
    eos = names["eos"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {eos}",
        pair=f"{cls} $A {eos} $B {eos}",
        special_tokens=[(token, vocabulary[token]) for token in (cls, eos)],
    )
    return backend, names


def _letters(
    folder: Path, settings: Mapping[str, Any], special_tokens: Mapping[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """VITS's letters, in lower case; characters that are none of them are left out."""
    if settings.get("phonemize", True):
        raise DataError(
            f"{folder} reads phonemes, which are not made here", "call the model with their ids"
        )
    vocabulary = _read_settings(folder / "vocab.json")
    letters = [token for token in vocabulary if len(token) == 1]
    steps: list[normalizers.Normalizer] = []
    if settings.get("normalize", True):
        capitals = {one.upper(): one for one in letters if one.upper() not in vocabulary}
        steps += [normalizers.Replace(capital, one) for capital, one in capitals.items()]
    if settings.get("language") == "ron":
        steps.append(normalizers.Replace("ț", "ţ"))
    if settings.get("normalize", True):
        others = Regex(f"[^{''.join(map(re.escape, letters))}]")
        steps += [normalizers.Replace(others, ""), normalizers.Strip()]
    names = _with_usual_names(special_tokens, vocabulary)
    backend = tokenizers.Tokenizer(models.WordLevel(dict(vocabulary), names.get("unk", "<unk>")))
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    return backend, names


def _byte_level_bpe(
    folder: Path, settings: Mapping[str, Any], special_tokens: Mapping[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """Byte-level BPE (Radford et al., 2019) from vocab.json and merges.txt."""
    files = (folder / "vocab.json", folder / "merges.txt")
    vocabulary, merges = models.BPE.read_file(*map(str, files))
    names = _with_usual_names(special_tokens, vocabulary)
    prefix_space = bool(settings.get("add_prefix_space", False))
    # GPT-2 marks the space before a word (Ġ), CLIP and GPT-1 the end of a word (</w>).
    is_clip = any(right.endswith("</w>") for _, right in merges)
    if is_clip:
        if "<|startoftext|>" not in vocabulary:
            raise DataError(
                f"{folder}: words that end with </w> are understood of CLIP only", CONVERT
            )
        backend = _clip_bpe(vocabulary, merges, names.get("unk"))
    else:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
        backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, folder, settings, names)
    start = names.get("bos" if is_clip else "cls")
    end = names.get("eos" if is_clip else "sep")
    if start and end:
        backend.post_processor = _roberta_template(
            backend, start, end, prefix_space, trim_offsets=not is_clip
        )
    else:  # GPT-2 has no template
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend, names


def _clip_bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], unknown: str | None
) -> tokenizers.Tokenizer:
    """CLIP's BPE: lower case, and the last piece of a word ends with </w>."""
    model = models.BPE(vocabulary, merges, end_of_word_suffix="</w>", unk_token=unknown)
    backend = tokenizers.Tokenizer(model)
    one_space = normalizers.Replace(Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), one_space, normalizers.Lowercase()]
    )
    # Inverted: what the expression matches is kept, and what is between (spaces) removed.
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), "removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("</w>", " "), decoders.Strip(" ", 0, 1)]
    )
    return backend


def _roberta_template(
    backend: tokenizers.Tokenizer,
    start: str,
    end: str,
    prefix_space: bool = False,
    trim_offsets: bool = True,
) -> processors.RobertaProcessing:
    """<s> A </s>, of a pair <s> A </s> </s> B </s>, all of it in one segment."""
    ids = backend.get_vocab()
    return processors.RobertaProcessing(
        (end, ids[end]),
        (start, ids[start]),
        trim_offsets=trim_offsets,
        add_prefix_space=prefix_space,
    )


def _add_tokens(
    backend: tokenizers.Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    special_tokens: Mapping[Role, str],
) -> None:
    """Added tokens beyond the vocabulary, with the ids that the folder says, and special tokens.

    Special tokens keep their meaning inside texts; RoBERTa's mask takes the space before it.
    """
    # token → id: added_tokens.json of old folders, added_tokens_decoder (id → token) of new ones.
    added = {token: int(i) for token, i in _read_settings(folder / "added_tokens.json").items()} | {
        str(token_content(token)): int(i)
        for i, token in settings.get("added_tokens_decoder", {}).items()
    }
    # In the order of the ids: the library numbers added tokens consecutively.
    for token, i in sorted(added.items(), key=lambda item: item[1]):
        if backend.token_to_id(token) is None:
            backend.add_tokens([token])
        if backend.token_to_id(token) != i:
            raise DataError(
                f"{folder}: the token {token!r} is number {i}, "
                "which does not follow the vocabulary",
                _GIVE_WHOLE,
            )
    for role, token in special_tokens.items():
        if backend.token_to_id(token) is not None:
            strip_left = role == "mask" and token == "<mask>"
            backend.add_special_tokens(
                [AddedToken(token, lstrip=strip_left, normalized=False, special=True)]
            )
