"""The server on its socket: what it prints, the studio beside it, and its end."""

from __future__ import annotations

import secrets
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from regard.serve.application import application
from regard.serve.service import Service
from regard.studio import server as studio_server
from regard.studio.model_store import ModelStore, OpenModel, UploadedFiles
from regard.system.errors import RegardWarning
from regard.system.web_server import base_url, bound_socket, is_loopback, trusted_hosts


class ServedModels(ModelStore):
    """The served models for the studio, which opens no second copy of any, and no other folder."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.files = UploadedFiles()
        self.opener = None
        self._opened: dict[str, OpenModel] = {}

    def models(self) -> dict[str, Path]:
        return dict.fromkeys(self.service.models.names(), Path())

    def runs(self) -> dict[str, Path]:
        return {}

    def model(self, name: str) -> OpenModel:
        model = self.service.models.load(name).model
        loaded = self.service.models.engines()
        # What has been put away is let go here too.
        self._opened = {name: one for name, one in self._opened.items() if name in loaded}
        if name not in self._opened or self._opened[name].model is not model:
            self._opened[name] = OpenModel(model)
        return self._opened[name]


class _Server(uvicorn.Server):
    """Says that it is shutting down, from the signal on."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.service.draining:
            print("serve: shutting down when all requests are answered", file=sys.stderr)
        self.service.draining = True
        super().handle_exit(sig, frame)


def serve(
    service: Service,
    host: str,
    port: int,
    *,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    studio: bool = True,
    drain_seconds: float = 60.0,
) -> None:
    """Prints the address, and answers requests until a signal; then those that are there.

    `hosts` are other names of this server, as of a proxy before it; pages of the `origins` may
    ask it.
    """
    # They quote what people send, which stands in no log.
    warnings.simplefilter("ignore", RegardWarning)
    token = secrets.token_urlsafe(16)
    trusted = (*trusted_hosts(host), *hosts)
    page = studio_server.application(ServedModels(service), token, trusted) if studio else None
    with bound_socket(host, port) as listener:
        app = application(service, trusted, origins, page)
        address = base_url(host, listener.getsockname()[1])
        print(f"serve: {address}/v1", flush=True)
        if studio:
            print(f"studio: {address}/studio/#token={token}", flush=True)
        if not is_loopback(host):
            print(_NETWORK, file=sys.stderr)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
        )
        try:
            _Server(config, service).run(sockets=[listener])
        finally:
            service.models.drain(0)


_NETWORK = """\
warning: everyone who has the key can use these models, and the connection is not encrypted
  → put a server with TLS before it (nginx, Caddy), or forward the port with ssh -L"""
