"""Recordings with texts: from the tables a recipe names to memory-mapped samples.

Each split is a folder of `state/data`: `samples`, those of all recordings end to end (float32,
little endian, 16 kHz), `offsets.npy`, where each begins and the last one ends, and
`transcripts.json`. Files are read and resampled once; a resumed run needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.audio import Samples, read_wav_and_rate, resample
from regard.data.labelled import Recording, read_transcripts
from regard.models.inputs.sound import read_samples, say_resampled
from regard.system import disk
from regard.system.errors import DataError
from regard.training.data.labelled_text import splits_of_files, with_held_out
from regard.training.setup import Say, Setup

Reader = Callable[[str], list[Recording]]
_SAMPLES = "samples"
_OFFSETS = "offsets.npy"
_TRANSCRIPTS = "transcripts.json"
_DTYPE = np.dtype("<f4")  # little endian on every machine: run folders travel


class RecordedSpeech:
    """Recordings of a split: their samples, memory-mapped, and their transcripts or labels."""

    def __init__(
        self, samples: Samples, offsets: NDArray[np.int64], transcripts: list[str]
    ) -> None:
        self.samples = samples
        self.offsets = offsets
        self.transcripts = transcripts

    @classmethod
    def open(cls, folder: Path) -> RecordedSpeech:
        """A split that `write_recordings` stored; its sizes are checked."""
        try:
            offsets = np.load(folder / _OFFSETS, allow_pickle=False)
            transcripts = disk.read_json(folder / _TRANSCRIPTS, DataError)
            samples = np.memmap(folder / _SAMPLES, dtype=_DTYPE, mode="r")
        except (OSError, ValueError) as error:
            raise _damaged(folder, str(error)) from None
        # Three files that belong together: an interrupted copy may have one of them only.
        if len(offsets) != len(transcripts) + 1 or offsets[-1] != len(samples):
            raise _damaged(folder, "its files do not match")
        # A plain array is faster to slice than np.memmap itself.
        return cls(np.asarray(samples), offsets, transcripts)

    def __len__(self) -> int:
        return len(self.transcripts)

    def __getitem__(self, row: int) -> Samples:
        """The samples of a recording."""
        # A copy: torch cannot wrap memory that must not be written to.
        return self.samples[self.offsets[row] : self.offsets[row + 1]].copy()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of samples of each recording."""
        return np.diff(self.offsets)  # [N]


def recorded_speech(setup: Setup, read: Reader = read_transcripts) -> dict[str, RecordedSpeech]:
    """The recordings by split, stored in the run folder on the first call.

    `read` reads a table or a folder that the recipe names.
    """
    folder = setup.run_folder.data
    if not (folder / "train").is_dir():
        splits = setup.splits(partial(splits_of_files, read))
        sets = with_held_out({name: list(split()) for name, split in splits.items()})
        rates: set[int] = set()
        # Written last: the presence of the training set says that all are there.
        for name in sorted(sets, key=lambda name: name == "train"):
            write_recordings(sets[name], folder / name, rates)
        say_resampled(rates, setup.say)
    # A killed process may have left the temporary folder of a split.
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    stored = {name: RecordedSpeech.open(folder / name) for name in names}
    _report(stored, setup.say)
    return stored


def write_recordings(recordings: Iterable[Recording], folder: Path, rates: set[int]) -> None:
    """Stores the samples of recordings at 16 kHz, completely or not at all.

    The sample rates of their files are added to `rates`.
    """
    offsets = [0]
    transcripts = []
    folder.parent.mkdir(parents=True, exist_ok=True)
    with disk.atomic_folder(folder) as partial_folder:
        # Streamed: an hour of speech is 230 MB, and only one recording is in memory.
        with open(partial_folder / _SAMPLES, "wb") as file:
            for recording in recordings:
                samples = _samples(recording, rates)
                file.write(samples.astype(_DTYPE).tobytes())
                offsets.append(offsets[-1] + len(samples))
                transcripts.append(_transcript(recording))
        if not transcripts:
            raise DataError("there are no recordings", "give a table with at least one")
        np.save(partial_folder / _OFFSETS, np.array(offsets, np.int64))
        disk.write_json(partial_folder / _TRANSCRIPTS, transcripts)


def _samples(recording: Recording, rates: set[int]) -> Samples:
    if not isinstance(recording.audio, Path):
        return read_samples(recording.audio)
    samples, rate = read_wav_and_rate(recording.audio)
    rates.add(rate)
    if not len(samples):
        raise DataError(f"{recording.audio} contains no audio", "leave it out of the table")
    return resample(samples, rate)


def _transcript(recording: Recording) -> str:
    # As text comes out of a model: one space between words, none at the ends.
    text = " ".join(recording.text.split())
    if not text:
        name = recording.audio if isinstance(recording.audio, Path) else "a recording"
        raise DataError(f"{name} has no transcript or label", "write what is heard in it")
    return text


def _report(sets: Mapping[str, RecordedSpeech], say: Say) -> None:
    counts = ", ".join(f"{len(speech):,} {name}" for name, speech in sets.items())
    say(f"data: {counts} recordings")


def _damaged(folder: Path, detail: str) -> DataError:
    return DataError(f"the stored recordings in {folder} are damaged: {detail}", "start a new run")
