"""The model a user holds: the core model, its tokenizers, and the ids that frame sequences."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from regard import spec
from regard.build import Model
from regard.checkpoint import Checkpoints
from regard.decode.search import Ends, Settings, batches, decode
from regard.decode.strategy import Beam, Greedy, Hypothesis, Strategy
from regard.errors import CheckpointError, DataError, ModelError, SettingError
from regard.interop import folder as folders
from regard.model import EncoderDecoder
from regard.text.tokenizer import Tokenizer


class Translator:
    """Translates text; made by `regard.load(folder)`."""

    def __init__(
        self, model: EncoderDecoder, description: spec.EncoderDecoder, source: Tokenizer, target: Tokenizer, start: int
    ) -> None:
        self.model = model
        self.spec = description
        self.source_tokenizer = source
        self.target_tokenizer = target
        never = {target.pad, target.bos, start, target.unk} - {target.eos, None}
        self.start = start
        self.ends = Ends(source.pad, start, target.eos, tuple(sorted(i for i in never if i is not None)))

    @overload
    def translate(self, text: str, strategy: Strategy | None = None) -> str: ...
    @overload
    def translate(self, text: list[str], strategy: Strategy | None = None) -> list[str]: ...
    def translate(self, text: str | list[str], strategy: Strategy | None = None) -> str | list[str]:
        """One text or a list of them; an empty line gives an empty line. Beam 4 unless told otherwise."""
        lines = [text] if isinstance(text, str) else list(text)
        best = [self.text(found[0]) if found else "" for found in self.hypotheses(lines, Settings(strategy or Beam()))]
        return best[0] if isinstance(text, str) else best

    def hypotheses(
        self,
        lines: Sequence[str],
        settings: Settings,
        progress: Callable[[int], None] | None = None,
        *,
        before: int = 0,
    ) -> list[list[Hypothesis]]:
        """All that the search found for each line, best first; nothing for an empty line. `before`: how many lines of the
        same text came before these, so that numbers in errors and the chance of sampling are the line's own."""
        asked = [i for i, line in enumerate(lines) if line.strip()]
        sources = self.encode([lines[i] for i in asked])
        numbers = [before + i for i in asked]
        self._check_lengths(sources, numbers)
        if isinstance(self.spec.target.position, spec.Learned):
            settings = replace(settings, limit=replace(settings.limit, most=self.spec.target.position.length))
        found = decode(self.model, sources, self.ends, settings, progress, keys=numbers)
        results: list[list[Hypothesis]] = [[] for _ in lines]
        for i, hypotheses in zip(asked, found, strict=True):
            results[i] = hypotheses
        return results

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Source token ids with their end token."""
        return [[*ids, self.source_tokenizer.eos] for ids in self.source_tokenizer.encode_batch(lines)]

    def _check_lengths(self, sources: list[list[int]], lines: list[int]) -> None:
        """Learned positions end somewhere: a longer line is named before anything is computed."""
        position = self.spec.source.position
        if not isinstance(position, spec.Learned):
            return
        longer = [line + 1 for line, ids in zip(lines, sources, strict=True) if len(ids) > position.length]
        if longer:
            raise DataError(
                f"{len(longer)} lines have more than the {position.length} tokens this model has positions for, "
                f"the first is line {longer[0]}",
                "split these lines into sentences",
            )

    def text(self, hypothesis: Hypothesis) -> str:
        return self.target_tokenizer.decode(hypothesis.tokens)

    @torch.inference_mode()
    def surprise(self, sources: Sequence[str], targets: Sequence[str], tokens: int = 4096) -> tuple[float, int]:
        """−log p of the targets given their sources, in nats, summed, and how many tokens that was (end tokens included)."""
        self.model.eval()
        device = next(self.model.parameters()).device
        left = self.encode(sources)
        right = [[*ids, self.target_tokenizer.eos] for ids in self.target_tokenizer.encode_batch(targets)]
        total, count = 0.0, 0
        sizes = [max(len(a), len(b)) for a, b in zip(left, right, strict=True)]
        for rows in batches(sizes, Settings(Greedy(), tokens=tokens)):
            source = pad_sequence([torch.tensor(left[i]) for i in rows], batch_first=True, padding_value=-1)
            labels = pad_sequence([torch.tensor(right[i]) for i in rows], batch_first=True, padding_value=-100)
            shifted = functional.pad(labels.clamp_min(0)[:, :-1], (1, 0), value=self.start)
            source, labels, shifted = source.to(device), labels.to(device), shifted.to(device)
            hidden, _ = self.model(source.clamp_min(0), shifted, source >= 0)
            logits = self.model.head(hidden).float()
            total += functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
            count += int((labels >= 0).sum())
        return total, count

    def perplexity(self, sources: Sequence[str], targets: Sequence[str]) -> float:
        """exp(−log p per target token), unsmoothed."""
        total, count = self.surprise(sources, targets)
        return math.exp(min(total / max(1, count), 700.0))

    def to(self, device: str | torch.device) -> Translator:
        self.model.to(device)
        return self


def load(folder: str | Path, *, device: str = "auto", say: Callable[[str], None] | None = None) -> Translator:
    """Opens a run folder, or a folder in Hugging Face's layout. `say` is told what a user should know (standard error)."""
    folder = Path(folder)
    try:
        model, opened = folders.open_model(folder)
    except CheckpointError as error:
        model, opened = _recovered(folder, error, say or _to_standard_error)
    source, target = open_tokenizers(folder)
    described = opened.spec if isinstance(opened.spec, spec.EncoderDecoder) else None
    reads = described is not None and isinstance(described.source, spec.Tokens)
    if not isinstance(model, EncoderDecoder) or described is None or not reads or opened.ids is None:
        kind = opened.config.get("model_type")
        raise ModelError(f"{folder} holds a model that does not translate ({kind})", "give an encoder–decoder of text")
    model.to(choose_device(device)).eval()
    return Translator(model, described, source, target, opened.ids.start)


def open_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The source and the target side's, which may be one."""
    source = Tokenizer.load(folder / "tokenizer.json")
    second = folder / "target_tokenizer.json"
    return source, Tokenizer.load(second) if second.exists() else source


def _recovered(folder: Path, error: CheckpointError, say: Callable[[str], None]) -> tuple[Model, folders.Opened]:
    """A run whose exported weights are damaged still has its training state: the newest that is whole."""
    saved = Checkpoints(folder / "state" / "checkpoints").newest(say)
    if saved is None:
        raise error
    say(f"{error.problem}; using the checkpoint of step {saved.step} instead")
    return folders.open_model(folder, saved.groups["weights"])


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr)


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError:
        raise SettingError(f"there is no device {name!r}", "auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(f"PyTorch finds no GPU for {name!r} here", "use cpu or auto")
    return device
