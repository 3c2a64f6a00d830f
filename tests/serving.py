"""Servers for tests: small models behind real sockets, and their official clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openai import OpenAI

import model_kinds
import regard
from regard.serve.api import HttpLimits
from regard.serve.application import application
from regard.serve.engine import Engine
from regard.serve.requests import Limits
from regard.serve.service import Service
from regard.studio.model_store import DEMO
from regard.system.web_server import bound_socket
from regard.training.translation_languages import Pair

CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class Description:
    folder: str
    created: float = 0.0


class Loaded:
    """Models that are in memory, as `regard.serve.models.Models` has those of folders."""

    def __init__(self, models: Mapping[str, regard.Model], limits: Limits | None = None) -> None:
        self._engines = {name: Engine(model, limits) for name, model in models.items()}

    def names(self) -> list[str]:
        return list(self._engines)

    def describe(self, name: str) -> Description:
        return Description(str(self._engines[name].model.folder))

    def engines(self) -> dict[str, Engine]:
        return dict(self._engines)

    async def engine(self, name: str) -> Engine:
        return self._engines[name]


@dataclass
class Served:
    """A server that runs, its address and its insides."""

    url: str
    service: Service
    key: str | None = None

    def model(self, name: str) -> Any:
        return self.service.models.engines()[name].model

    def client(self, **options: Any) -> OpenAI:
        """The official client, which parses each answer by its own types in strict mode."""
        settings: dict[str, Any] = {"_strict_response_validation": True, "max_retries": 0}
        return OpenAI(
            base_url=f"{self.url}/v1", api_key=self.key or "none", **{**settings, **options}
        )


@contextmanager
def served(
    models: Mapping[str, regard.Model],
    *,
    limits: Limits | None = None,
    http: HttpLimits | None = None,
    key: str | None = None,
    languages: Mapping[str, Pair] | None = None,
    **options: Any,
) -> Iterator[Served]:
    """A server in a thread of this process."""
    registry: Any = Loaded(models, limits)
    service = Service(registry, http, key, languages)
    with bound_socket("127.0.0.1", 0) as listener:
        app = application(service, **options)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        listener.listen()  # a first request waits for the server
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield Served(f"http://127.0.0.1:{port}", service, key)
        finally:
            server.should_exit = True
            thread.join()
            for engine in registry.engines().values():
                engine.drain(0)


def trained(names: tuple[str, ...], folder: Path) -> dict[str, regard.Model]:
    """Models of these kinds, trained for one step; a language model has a chat template."""
    data = folder / "data"
    model_kinds.write_data(data)
    (data / "long.txt").write_text((data / "text.txt").read_text() * 30)
    models: dict[str, regard.Model] = {}
    for name in names:
        # Chats need a longer context than the other tests of a language model.
        reads, settings = model_kinds.KINDS[name]
        longer = {"context": 96, "text": "long.txt"} if name == "gpt2" else {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(model_kinds.KINDS, name, (reads, settings | longer))
            run = model_kinds.train(name, data, folder / name)
        if name == "gpt2":
            (run / "chat_template.jinja").write_text(CHAT)
        models[name] = regard.load(run, device="cpu", say=lambda text: None)
    return models


KINDS = (
    "gpt2",
    "classifier",
    "tagger",
    "embedder",
    "whisper",
    "wav2vec2",
    "patchtst",
    "vit",
    "policy",
)


def server_of_all(folder: Path) -> Iterator[Served]:
    """One server, for all tests that only ask; as a fixture in tests/conftest.py."""
    models = trained(KINDS, folder)
    models["demo"] = regard.load(DEMO, device="cpu", say=lambda text: None)
    with served(models, languages={"demo": Pair("en", "de")}) as running:
        yield running
