"""Opening tokenizers from files.

A model folder in Hugging Face's layout holds one of these, and the first that is there is taken:

- `tokenizer.json`, the `tokenizers` library's own format;
- `vocab.txt` (WordPiece, BERT);
- SentencePiece's files (`spiece.model`, `source.spm`, ...);
- `vocab.json` and `merges.txt` (byte-level BPE, GPT-2, RoBERTa, CLIP).

From the latter three the same tokenizer is assembled here that transformers would make of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard import disk
from regard.errors import DataError
from regard.text.sentencepiece_layouts import (
    SIDES,
    holds_sentencepiece,
    holds_source_and_target,
    open_sentencepiece,
    open_side,
)
from regard.text.tokenizer import (
    SPECIAL_TOKEN_NAMES,
    Role,
    Template,
    Tokenizer,
    find_special_tokens,
    library_errors,
)

# How special tokens are called that a folder does not name. CLIP and GPT-2 have one token for
# several roles.
FOLDER_TOKEN_NAMES: dict[Role, tuple[str, ...]] = {
    "pad": (*SPECIAL_TOKEN_NAMES["pad"], "<|endoftext|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": (*SPECIAL_TOKEN_NAMES["unk"], "<|endoftext|>"),
    "bos": ("<s>", "<|startoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
_FETCH_AGAIN = "give a whole file; fetch the folder again"
_LEARN_AGAIN = "give a whole file; fetch or learn it again"
_CONVERT = (
    "write its tokenizer.json with transformers: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)
_NO_FILE = "give the path of a tokenizer.json, as Hugging Face folders hold it"
# How CLIP splits a text into words before BPE.
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
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
    backend = _parse_tokenizer_json(_read_tokenizer_json(path), str(path), _LEARN_AGAIN)
    return Tokenizer(backend, framing=Template(end=False), origin=str(path))


def load_translation_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a translation model from tokenizer.json."""
    return translation_tokenizer_from_json(_read_tokenizer_json(Path(path)), origin=str(path))


def translation_tokenizer_from_json(text: str, *, origin: str = "this tokenizer") -> Tokenizer:
    """The inverse of `Tokenizer.to_json`; `origin` names the text in error messages."""
    return Tokenizer.for_translation(
        _parse_tokenizer_json(text, origin, _LEARN_AGAIN), origin=origin
    )


def read_vocabulary(path: Path) -> dict[int, str]:
    """id → token of any tokenizer.json, whatever special tokens it has or lacks."""
    with library_errors(f"{path} is not a usable tokenizer.json", _LEARN_AGAIN):
        backend = tokenizers.Tokenizer.from_str(disk.read_bytes(path).decode())
    return {i: token for token, i in backend.get_vocab().items()}


def _read_tokenizer_json(path: Path) -> str:
    try:
        return disk.read_bytes(path).decode()
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}", _NO_FILE) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"the tokenizer {path} is not UTF-8 text (byte {error.start})", _NO_FILE
        ) from error


def _parse_tokenizer_json(text: str, origin: str, repair: str) -> tokenizers.Tokenizer:
    with library_errors(f"{origin} is not a usable tokenizer.json", repair):
        backend = tokenizers.Tokenizer.from_str(text)
        backend.encode(_NO_TOKEN)  # fails here rather than on a user's text
    return backend


# --- a model folder ---


def open_encoder_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of an encoder's folder, with the special tokens that the folder names."""
    backend, special_tokens, origin = open_backend(Path(folder))
    return Tokenizer(backend, special_tokens, origin=origin)


def open_language_model_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a language model's folder: a text is framed as a prompt, without an end."""
    backend, _, origin = open_backend(folder)
    return Tokenizer(backend, framing=Template(end=False), origin=origin)


def open_translation_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target tokenizer of a translation model, which may be one."""
    backend, _, origin = open_backend(folder)
    source = Tokenizer.for_translation(backend, origin=origin)
    target_path = folder / "target_tokenizer.json"
    if target_path.exists():
        return source, load_translation_tokenizer(target_path)
    target_backend = _open_target_backend(folder)
    if target_backend is None:
        return source, source
    return source, Tokenizer.for_translation(target_backend, origin=origin)


def holds_tokenizer(folder: Path) -> bool:
    """Whether there is a tokenizer that `open_backend` knows."""
    return (
        (folder / "tokenizer.json").is_file()
        or (folder / "vocab.txt").is_file()
        or ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file())
        or holds_sentencepiece(folder)
    )


def open_backend(folder: Path) -> tuple[tokenizers.Tokenizer, dict[Role, str], str]:
    """The tokenizer of a model folder, its special tokens by role, and the file it is from.

    A special token has the name that the folder gives it, or else one of the usual ones.
    """
    if not holds_tokenizer(folder):
        raise _no_tokenizer(folder)
    # Where both name a token, tokenizer_config.json counts.
    settings = {
        **_json(folder / "special_tokens_map.json"),
        **_json(folder / "tokenizer_config.json"),
    }
    special_tokens: dict[Role, str] = {}
    for role in FOLDER_TOKEN_NAMES:
        token = token_content(settings.get(f"{role}_token"))
        if token is not None:
            special_tokens[role] = token
    tokenizer_json = folder / "tokenizer.json"
    vocab_txt = folder / "vocab.txt"
    vocab_json = folder / "vocab.json"
    if tokenizer_json.is_file():
        text = disk.read_text(tokenizer_json, DataError)
        backend = _parse_tokenizer_json(text, str(tokenizer_json), _FETCH_AGAIN)
        origin = tokenizer_json
        special_tokens = _complete(special_tokens, backend.get_vocab())
    elif vocab_txt.is_file():
        with library_errors(f"{vocab_txt} is not a usable vocabulary", _FETCH_AGAIN):
            backend, special_tokens = _wordpiece(vocab_txt, settings, special_tokens)
        origin = vocab_txt
    elif holds_sentencepiece(folder):
        with library_errors(f"the SentencePiece files of {folder} are not usable", _FETCH_AGAIN):
            backend, special_tokens = _sentencepiece(folder, settings, special_tokens)
        origin = folder
    else:
        problem = f"{vocab_json} and merges.txt are not a usable vocabulary"
        with library_errors(problem, _FETCH_AGAIN):
            backend, special_tokens = _byte_level_bpe(folder, settings, special_tokens)
        origin = vocab_json
    return backend, special_tokens, str(origin)


def _open_target_backend(folder: Path) -> tokenizers.Tokenizer | None:
    """The target side's tokenizer, where SentencePiece files give it one of its own (Marian)."""
    if (folder / "tokenizer.json").is_file() or not holds_source_and_target(folder):
        return None
    vocabulary = _json(folder / "target_vocab.json") or _json(folder / "vocab.json")
    with library_errors(f"the SentencePiece files of {folder} are not usable", _FETCH_AGAIN):
        return open_side(folder, SIDES[1], vocabulary)


def _no_tokenizer(folder: Path) -> DataError:
    models = sorted(path.name for suffix in ("model", "spm") for path in folder.glob(f"*.{suffix}"))
    content = f"only {models[0]}" if models else "none"
    return DataError(f"{folder} holds no tokenizer that can be opened here ({content})", _CONVERT)


# --- from a vocabulary to a tokenizer ---


def _wordpiece(
    path: Path, settings: Mapping[str, Any], special_tokens: dict[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """WordPiece from vocab.txt, one token a line."""
    # The line number is the id. Not `splitlines`: a token may be U+2028 or the like.
    lines = disk.read_text(path, DataError).removesuffix("\n").split("\n")
    vocabulary = {line: i for i, line in enumerate(lines)}
    special_tokens = _complete(special_tokens, vocabulary)
    unknown = special_tokens.get("unk", "[UNK]")
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),  # None: where lower case is asked for
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    _add_tokens(backend, path.parent, settings, special_tokens)
    cls = _required(path, special_tokens, "cls")
    sep = _required(path, special_tokens, "sep")
    if cls == "<s>":  # MPNet: WordPiece in RoBERTa's template
        backend.post_processor = _roberta_template(backend, cls, sep)
    else:
        backend.post_processor = processors.TemplateProcessing(
            # `:0` and `:1` are segment ids.
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
        )
    return backend, special_tokens


def _sentencepiece(
    folder: Path, settings: Mapping[str, Any], special_tokens: dict[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    if holds_source_and_target(folder):
        backend = open_side(folder, SIDES[0], _json(folder / "vocab.json"))
    else:
        backend = open_sentencepiece(folder, _json(folder / "config.json"), settings)
    special_tokens = _complete(special_tokens, backend.get_vocab())
    _add_tokens(backend, folder, settings, special_tokens)
    backend.encode(_NO_TOKEN)
    return backend, special_tokens


def _byte_level_bpe(
    folder: Path, settings: Mapping[str, Any], special_tokens: dict[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """Byte-level BPE from vocab.json and merges.txt."""
    vocabulary = _json(folder / "vocab.json")
    merges = _merges(folder / "merges.txt")
    if merges is None or not all(isinstance(i, int) for i in vocabulary.values()):
        raise DataError(f"{folder} holds a damaged vocab.json or merges.txt", _FETCH_AGAIN)
    special_tokens = _complete(special_tokens, vocabulary)
    # GPT-2 marks the space before a word (Ġ), CLIP and GPT-1 the end of a word (</w>).
    if any(right.endswith("</w>") for _, right in merges):
        if "<|startoftext|>" not in vocabulary:
            raise DataError(
                f"{folder}: words that end with </w> are understood of CLIP only", _CONVERT
            )
        return _clip_bpe(folder, vocabulary, merges, settings, special_tokens)
    prefix_space = bool(settings.get("add_prefix_space", False))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, folder, settings, special_tokens)
    if "cls" in special_tokens and "sep" in special_tokens:
        backend.post_processor = _roberta_template(
            backend, special_tokens["cls"], special_tokens["sep"], prefix_space
        )
    else:  # GPT-2 has no template
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend, special_tokens


def _merges(path: Path) -> list[tuple[str, str]] | None:
    """The pairs of merges.txt in their order; None if a line is no pair."""
    merges = []
    for line in disk.read_text(path, DataError).split("\n"):
        # The first line of merges.txt names the version of the format.
        if not line or line.startswith("#version:"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            return None
        merges.append((pair[0], pair[1]))
    return merges


def _clip_bpe(
    folder: Path,
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    settings: Mapping[str, Any],
    special_tokens: dict[Role, str],
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """CLIP's BPE: lower case, and the last piece of a word ends with </w>."""
    model = models.BPE(
        vocabulary, merges, end_of_word_suffix="</w>", unk_token=special_tokens.get("unk")
    )
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
    _add_tokens(backend, folder, settings, special_tokens)
    if "bos" in special_tokens and "eos" in special_tokens:
        prefix_space = bool(settings.get("add_prefix_space", False))
        backend.post_processor = _roberta_template(
            backend,
            special_tokens["bos"],
            special_tokens["eos"],
            prefix_space,
            trim_offsets=False,
        )
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend, special_tokens


def _roberta_template(
    backend: tokenizers.Tokenizer,
    start: str,
    end: str,
    prefix_space: bool = False,
    trim_offsets: bool = True,
) -> processors.RobertaProcessing:
    """<s> A </s>, of a pair <s> A </s> </s> B </s>, all of it in one segment."""
    start_id = backend.token_to_id(start)
    end_id = backend.token_to_id(end)
    if start_id is None or end_id is None:
        raise DataError(f"the vocabulary lacks {start!r} or {end!r}", _FETCH_AGAIN)
    return processors.RobertaProcessing(
        (end, end_id), (start, start_id), trim_offsets=trim_offsets, add_prefix_space=prefix_space
    )


def _complete(special_tokens: Mapping[Role, str], vocabulary: Mapping[str, int]) -> dict[Role, str]:
    """The special tokens that a folder names, and those it has under their usual names."""
    return {**find_special_tokens(vocabulary, FOLDER_TOKEN_NAMES), **special_tokens}


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
    added = {
        str(token): _added_id(i, folder) for token, i in _json(folder / "added_tokens.json").items()
    }
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        added |= {str(token_content(token)): _added_id(i, folder) for i, token in decoder.items()}
    # In the order of the ids: the library numbers added tokens consecutively.
    for token, i in sorted(added.items(), key=lambda item: item[1]):
        if backend.token_to_id(token) is None:
            backend.add_tokens([token])
        if backend.token_to_id(token) != i:
            raise DataError(
                f"{folder}: the token {token!r} is number {i}, "
                "which does not follow the vocabulary",
                _FETCH_AGAIN,
            )
    for role, token in special_tokens.items():
        if backend.token_to_id(token) is not None:
            strip_left = role == "mask" and token == "<mask>"
            backend.add_special_tokens(
                [AddedToken(token, lstrip=strip_left, normalized=False, special=True)]
            )


def _required(path: Path, special_tokens: Mapping[Role, str], role: Role) -> str:
    if role not in special_tokens:
        raise DataError(f"{path} has no {role} token", "name it in tokenizer_config.json")
    return special_tokens[role]


def token_content(value: Any) -> str | None:
    """A token of tokenizer_config.json, which may be a string or an object with its options."""
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else None


def _added_id(value: Any, folder: Path) -> int:
    """The id of an added token: a whole number, which is a string where it is a key of JSON."""
    digits = str(value)
    if not re.fullmatch(r"[0-9]{1,9}", digits):
        raise DataError(f"{folder}: {digits[:20]!r} is no number of an added token", _FETCH_AGAIN)
    return int(digits)


def _json(path: Path) -> dict[str, Any]:
    return disk.read_json_object(path, DataError)
