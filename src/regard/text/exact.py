"""A tokenizer.json taken as it is, for language models: no character of a text is lost, no special token is required.

`text.Tokenizer` is for sentences that are framed and scored, so it needs padding and an end token and tidies spaces. A
language model goes on from a text exactly as it stands, and files such as GPT-2's have neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

from regard.errors import DataError, SettingError, did_you_mean
from regard.text import tokenizer as framed
from regard.text.framed import holds_tokenizer, open_backend

MASK_NAMES = ("[MASK]", "<mask>")
HALF = "\ufffd"  # what the bytes of an unfinished character decode to


@dataclass(frozen=True)
class SpecialIds:
    """The special tokens a tokenizer is learnt with. `template` says how a text is framed for those who open the file."""

    tokens: tuple[str, ...]
    template: str = "$A"
    pair: str | None = None


class Exact:
    """Text to ids and back, with the file's own special tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, *, origin: str = "this tokenizer") -> None:
        framed.fork_quietly()
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._origin = origin
        self._vocabulary: dict[str, int] = dict(
            sorted(backend.get_vocab().items(), key=lambda entry: entry[1])
        )
        self.special = frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.pad = self.find(framed.PAD_NAMES)
        self.start = self.find(framed.START_NAMES)
        self.end = self.find(framed.END_NAMES)
        self.unk = self.find(framed.UNKNOWN_NAMES)
        self.mask = self.find(MASK_NAMES)

    @classmethod
    def learn(cls, texts: Iterable[str], kind: str, size: int, marks: SpecialIds) -> Exact:
        """`characters`: every one that occurs, in the order of Unicode; `bpe`: pieces of bytes, as GPT-2 has them."""
        learners = {"characters": _characters, "bpe": _pieces}
        if kind not in learners:
            known = (
                f"characters, bpe, or a path to a tokenizer.json; {did_you_mean(kind, learners)}"
            )
            raise SettingError(f"no tokenizer for texts is called {kind!r}", known)
        repair = "check the texts, or try characters"
        with framed.library_errors("the tokenizer could not be learned", repair):
            backend = learners[kind](map(framed.encodable, texts), size, marks.tokens)
        if marks.template != "$A":
            named = [
                (token, backend.token_to_id(token))
                for token in marks.tokens
                if token in marks.template
            ]
            backend.post_processor = processors.TemplateProcessing(
                single=marks.template,
                pair=marks.pair or f"{marks.template} $B",
                special_tokens=named,
            )
        return cls(backend)

    @classmethod
    def load(cls, path: str | Path) -> Exact:
        """Open a tokenizer.json, ours or another's, or what its folder holds in its place."""
        if not Path(path).exists() and holds_tokenizer(Path(path).parent):
            return cls.open(Path(path).parent)
        repair = "give the path of a tokenizer.json, as Hugging Face folders hold it"
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"cannot read the tokenizer {path}: {error.strerror}", repair
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"the tokenizer {path} is not UTF-8 text (byte {error.start})", repair
            ) from error
        with framed.library_errors(
            f"{path} is not a usable tokenizer.json", "fetch or learn it again"
        ):
            return cls(tokenizers.Tokenizer.from_str(text), origin=str(path))

    @classmethod
    def open(cls, folder: Path) -> Exact:
        """The tokenizer of a model folder, which may hold a vocabulary only."""
        backend, _, origin = open_backend(folder)
        return cls(backend, origin=origin)

    def to_json(self) -> str:
        return self._backend.to_str(pretty=True)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, and nothing else."""
        return self._ids([text], special=False)[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._ids(texts, special=False)

    def prompt(self, text: str) -> list[int]:
        """The ids of a text that is to go on: framed as the file says (LLaMA begins with <s>), but never ended."""
        ids = self._ids([text], special=True)[0]
        return (
            ids[:-1]
            if ids and ids[-1] == self.end and not text.endswith(self.token(ids[-1]))
            else ids
        )

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The characters that each id of `prompt(text)` stands for; empty for special ones."""
        return list(self._backend.encode(framed.encodable(text)).offsets)[: len(self.prompt(text))]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, token: int) -> str:
        return self._backend.id_to_token(int(token)) or f"<id {int(token)}>"

    def find(self, names: Iterable[str]) -> int | None:
        """The id of the first of these tokens that there is."""
        return next((self._vocabulary[name] for name in names if name in self._vocabulary), None)

    def required(self, role: str, names: Sequence[str]) -> int:
        found = self.find(names)
        if found is None:
            raise DataError(
                f"{self._origin} has no {role} token (looked for {', '.join(names)})",
                "add one to it as a special token, or learn a tokenizer",
            )
        return found

    def same_vocabulary(self, other: Exact) -> bool:
        """Whether both have the same tokens under the same ids."""
        return self._vocabulary == other._vocabulary

    def __len__(self) -> int:
        """The rows an embedding needs: the highest id plus one."""
        return max(self._vocabulary.values()) + 1

    def _ids(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        whole = [framed.encodable(text) for text in texts]
        with framed.library_errors(
            f"{self._origin} cannot write this text", "leave unusual characters out"
        ):
            return [
                found.ids
                for found in self._backend.encode_batch_fast(whole, add_special_tokens=special)
            ]


class StreamingDecoder:
    """Text that arrives token by token: `add` gives what is certain, `rest` what is left at the end.

    Several tokens may make one character, and a token's text may depend on the one before (spaces), so a token is always
    read together with its neighbours. The pieces together are the text of all the ids.
    """

    def __init__(self, tokenizer: Exact, before: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.ids = list(before)
        self.told = len(self.ids)  # ids whose text has been given
        self.from_ = max(
            0, self.told - 6
        )  # where reading begins: no character has more tokens than that

    def add(self, token: int) -> str:
        self.ids.append(int(token))
        return self._new(whole=False)

    def rest(self) -> str:
        return self._new(whole=True)

    def _new(self, whole: bool) -> str:
        known = self.tokenizer.decode(self.ids[self.from_ : self.told])
        text = self.tokenizer.decode(self.ids[self.from_ :])
        if not whole and text.endswith(HALF):
            return ""
        new = text[len(known) :]
        self.from_, self.told = self.told if new else self.from_, len(self.ids)
        return new


def pieces(tokenizer: Exact, before: Sequence[int], tokens: Iterable[int]) -> Iterator[str]:
    """The text of `tokens` after `before`, in as many pieces as there are whole characters."""
    growing = StreamingDecoder(tokenizer, before)
    for token in tokens:
        yield growing.add(token)
    yield growing.rest()


def _characters(texts: Iterable[str], size: int, marks: Sequence[str]) -> tokenizers.Tokenizer:
    known = sorted({character for text in texts for character in text})
    if not known:
        raise DataError(
            "there is no text to learn a tokenizer from", "give a file with some text in it"
        )
    if len(known) + len(marks) + 1 > size:
        raise SettingError(
            f"the text has {len(known):,} different characters, more than the vocabulary of {size:,}",
            "raise vocabulary, or use tokenizer = 'bpe'",
        )
    unknown = next((mark for mark in marks if mark in framed.UNKNOWN_NAMES), framed.UNKNOWN)
    special = [*dict.fromkeys((*marks, unknown))]
    tokens = {token: i for i, token in enumerate([*special, *known])}
    backend = tokenizers.Tokenizer(models.WordLevel(tokens, unk_token=unknown))
    backend.add_special_tokens(special)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _pieces(texts: Iterable[str], size: int, marks: Sequence[str]) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if size < len(alphabet) + len(marks):
        raise SettingError(
            f"a vocabulary of {size} has no room for all bytes",
            f"ask for {len(alphabet) + len(marks)} or more",
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(marks), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend
