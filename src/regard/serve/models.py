"""The models of a server, by name: loaded when first asked for, put away when idle.

What each needs of memory is known from its folder, before anything is loaded.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.builder import outline
from regard.builder.edit import packed_bytes
from regard.builder.parameter_count import parameter_count
from regard.families.folder.reading import ModelFolder, peek
from regard.models import load
from regard.models.base import choose_device, to_standard_error
from regard.serve.engine import Engine
from regard.serve.requests import Limits
from regard.system import memory
from regard.system.errors import Say, SettingError, did_you_mean

_BYTES = {"float32": 4, "bf16": 2}  # a weight on a GPU
_LOOK_SECONDS = 1.0  # between two looks at who is idle


@dataclass(frozen=True)
class Needs:
    """The memory that a served model takes, in bytes."""

    weights: int
    caches: int  # of all rows at their full length; less is taken where texts are shorter

    def __str__(self) -> str:
        weights, caches = map(memory.amount, (self.weights, self.caches))
        return f"weights of {weights}, caches of up to {caches}"


@dataclass(frozen=True)
class Entry:
    """One model of the list."""

    name: str
    family: str
    parameters: int
    created: float  # when its weights were written
    needs: Needs
    loaded: bool


def _packs(device: torch.device) -> bool:
    """Whether weights that stay float32 are laid out for the fastest products of a CPU."""
    return device.type == "cpu" and torch.backends.mkldnn.is_available()


class Models:
    """Engines by name. A model that nobody has asked for `idle_seconds` is put away, and so is the
    one that was used longest ago when another needs its memory."""

    def __init__(
        self,
        folders: Mapping[str, Path],
        *,
        limits: Limits | None = None,
        device: str = "auto",
        precision: str | None = None,
        idle_seconds: float = 900.0,
        memory_bytes: int | None = None,
        say: Say = to_standard_error,
    ) -> None:
        self.limits = limits or Limits()
        self.device = choose_device(device)
        self.precision = precision
        self.idle_seconds = idle_seconds
        self.memory_bytes = memory_bytes
        self.say = say
        self._folders = {name: Path(folder) for name, folder in folders.items()}
        self._opened = {name: peek(path) for name, path in self._folders.items()}
        self._engines: dict[str, Engine] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        for name in self._folders:
            say(f"{name}: {self.describe(name).needs}")
        threading.Thread(target=self._put_away_idle, name="regard-idle", daemon=True).start()

    # ------------------------------------------------------------------ without loading

    def names(self) -> list[str]:
        return [*self._folders]

    def describe(self, name: str) -> Entry:
        """What is known of a model from its folder."""
        folder = self._require(name)
        opened = self._opened[name]
        written = max(path.stat().st_mtime for path in folder.iterdir())
        return Entry(
            name,
            str(opened.config.get("model_type") or type(opened.spec).__name__),
            parameter_count(opened.spec),
            written,
            self._needs(opened),
            name in self._engines,
        )

    def _needs(self, opened: ModelFolder) -> Needs:
        precision = self.precision or "float32"
        weights = packed_bytes(outline(opened.spec), precision)
        if self.device.type != "cpu":
            weights = parameter_count(opened.spec) * _BYTES[precision]
        positions = self.limits.max_tokens
        if opened.spec.max_length is not None:
            positions = min(positions, opened.spec.max_length)
        cache = (opened.spec.kv_cache_size or 0) * positions * self.limits.rows
        return Needs(weights, cache * 4)

    def _require(self, name: str) -> Path:
        if name not in self._folders:
            raise SettingError(f"there is no model {name!r}", did_you_mean(name, self._folders))
        return self._folders[name]

    # ------------------------------------------------------------------ loaded

    async def engine(self, name: str) -> Engine:
        """The engine of a model, which is loaded if it is not there yet."""
        self._require(name)
        if name in self._engines:
            return self._engines[name]
        return await asyncio.to_thread(self.load, name)

    def load(self, name: str) -> Engine:
        """As `engine`, in this thread."""
        folder = self._require(name)
        with self._lock:
            if name not in self._engines:
                needs = self._needs(self._opened[name])
                self._make_room(needs.weights)
                begin = time.monotonic()
                model = load(folder, device=str(self.device))
                model.say = self.say
                if self.precision is not None or _packs(self.device):
                    model.prepare_for_inference(self.precision)
                self._engines[name] = Engine(model, self.limits)
                self.say(f"{name}: loaded in {time.monotonic() - begin:.1f} s, {needs}")
            return self._engines[name]

    def _make_room(self, needed: int) -> None:
        """Puts models away that nobody uses now, the one used longest ago first."""
        while self._engines and needed > self._free():
            idle = [name for name, engine in self._engines.items() if not engine.busy]
            if not idle:
                break
            self.put_away(min(idle, key=lambda name: self._engines[name].last_used))
        if self.device.type == "cpu":
            memory.require_bytes(needed, "the weights of this model", "serve fewer or smaller ones")

    def _free(self) -> float:
        if self.memory_bytes is not None:
            loaded = sum(self._needs(self._opened[name]).weights for name in self._engines)
            return self.memory_bytes - loaded
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        return memory.available() or float("inf")

    def put_away(self, name: str) -> None:
        """Forgets a loaded model, after what it is asked now has been answered."""
        with self._lock:
            engine = self._engines.pop(name)
        engine.drain()
        self.say(f"{name}: put away")

    def _put_away_idle(self) -> None:
        while not self._closing.wait(_LOOK_SECONDS):
            now = time.monotonic()
            with self._lock:
                for name, engine in [*self._engines.items()]:
                    if now - engine.last_used > self.idle_seconds and not engine.busy:
                        self.put_away(name)

    def engines(self) -> dict[str, Engine]:
        """The engines that are there now."""
        return dict(self._engines)

    def drain(self, seconds: float | None = None) -> bool:
        """Answers what is there, refuses what comes; whether all was answered in time."""
        self._closing.set()
        engines = self.engines().values()
        for engine in engines:
            engine.refuse()
        deadline = time.monotonic() + (seconds or threading.TIMEOUT_MAX / 2)
        finished = [engine.drain(max(0.0, deadline - time.monotonic())) for engine in engines]
        return all(finished)
