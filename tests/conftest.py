"""What several tests share: seeds that follow from a test's name, and small random models."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import numpy as np
import pytest
import torch

# Fixtures of all tests that call commands in this process.
from command_line import command, demo, files, trained  # noqa: F401
from regard.builder import build
from regard.core.amx import SlowerKernelsWarning, require_bfloat16_products
from regard.families.encoder_decoders.transformer import transformer
from regard.wirings.encoder_decoder import EncoderDecoder

if TYPE_CHECKING:
    from regard.training.engine.loop import Loop

# A busy machine is not a failure, and a red run must be red again.
hypothesis.settings.register_profile("regard", deadline=None, derandomize=True)
hypothesis.settings.load_profile("regard")

# On a machine that announces AMX and does not have it: before the first test computes, and for
# the processes that tests start.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", SlowerKernelsWarning)
    require_bfloat16_products()


# --- the GPU suite ---


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


# --- what the suite costs ---

# Of the fast suite, processes that tests start included; lower it when you can.
CPU_SECONDS = 1_500
FAST = "not slow and not gpu and not thorough"  # as in addopts of pyproject.toml


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuTime:
    """The CPU time of all tests, summed over the processes of pytest-xdist. A fast suite that needs
    more than CPU_SECONDS fails."""

    def __init__(self) -> None:
        self.began = 0.0
        self.total = 0.0

    def pytest_runtest_logstart(self) -> None:
        self.began = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        item.user_properties.append(("cpu", cpu_seconds() - self.began))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.total += dict(report.user_properties).get("cpu", 0.0)  # type: ignore[operator]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.markexpr == FAST and self.total > CPU_SECONDS:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        text = f"CPU time of the tests: {self.total:,.0f} s"
        if terminalreporter.config.option.markexpr == FAST:
            text += f" of {CPU_SECONDS:,} s"
        terminalreporter.line(text, red=self.total > CPU_SECONDS)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTime())


# --- randomness ---


def seed_generators(name: str) -> None:
    """Seeds all global generators from a name, so that no test depends on those before it."""
    digest = hashlib.sha256(name.encode()).digest()
    seed = int.from_bytes(digest[:4], "little")  # numpy takes 32 bits
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    seed_generators(request.node.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """A fixture that several tests share has a seed of its own, whichever test asks first."""
    if fixturedef.scope == "function":
        return (yield)
    # The test that asks goes on where it was, as if the fixture had been there before.
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    with torch.random.fork_rng():
        seed_generators(f"{fixturedef.baseid}::{fixturedef.argname}")
        try:
            return (yield)
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


# --- a server ---


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # Only here: it needs packages that other tests do without.
    import serving

    yield from serving.server_of_all(tmp_path_factory.mktemp("served"))


# --- models ---


def small_model(
    vocabulary: int = 23, seed: int = 0, sharp: float = 2.0, **changes: object
) -> EncoderDecoder:
    """A random model whose predictions are far from uniform, so that searches have something to
    decide.
    """
    torch.manual_seed(seed)
    options = {"d_model": 24, "d_ff": 40, "heads": 3, "layers": 2, "dropout": 0.0} | changes
    model = build(transformer(vocabulary, vocabulary, **options))  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "table" not in name:
                parameter.mul_(sharp)
    return model.eval()


# --- training runs ---


@pytest.fixture
def stop_at() -> Callable[[int], Callable[[Loop], None]]:
    """`on_step=stop_at(5)`: the run is stopped after step 5 as by SIGTERM, with its state saved."""

    def make(step: int) -> Callable[[Loop], None]:
        def on_step(loop: Loop) -> None:
            if loop.progress.step == step:
                loop.request_stop(signal.SIGTERM)

        return on_step

    return make


@pytest.fixture
def crash_at() -> Callable[[int], Callable[[Loop], None]]:
    """`on_step=crash_at(5)`: the run ends after step 5 without saving, as in a crash."""

    def make(step: int) -> Callable[[Loop], None]:
        def on_step(loop: Loop) -> None:
            if loop.progress.step == step:
                raise KeyboardInterrupt

        return on_step

    return make
