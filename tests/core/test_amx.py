"""Products of bfloat16 where AMX instructions are announced and missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from regard.core import amx
from regard.system.errors import SettingError

Announce = Callable[..., list[str | None]]


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Announce]:
    """`announced(False, True)`: AMX is announced, and what two trials of a product tell.

    Returns the setting of oneDNN at each trial.
    """

    def announce(*outcomes: bool) -> list[str | None]:
        remaining = list(outcomes)
        settings: list[str | None] = []

        def product_survives() -> bool:
            settings.append(os.environ.get("ONEDNN_MAX_CPU_ISA"))
            return remaining.pop(0)

        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
        monkeypatch.setattr(amx, "_product_survives", product_survives)
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        amx.require_bfloat16_products.cache_clear()
        return settings

    yield announce
    amx.require_bfloat16_products.cache_clear()


def test_amx_that_works_is_used(announced: Announce) -> None:
    settings = announced(True)
    amx.require_bfloat16_products()
    assert settings == [None]
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def test_amx_that_is_missing_is_left_out_and_said_once(announced: Announce) -> None:
    settings = announced(False, True)
    with pytest.warns(amx.SlowerKernelsWarning, match="reports AMX"):
        amx.require_bfloat16_products()
    assert settings == [None, amx.WITHOUT_AMX]
    amx.require_bfloat16_products()  # no third trial


def test_products_that_cannot_be_saved_are_an_error_with_the_setting(announced: Announce) -> None:
    announced(False, False)
    with pytest.raises(SettingError, match=f"set ONEDNN_MAX_CPU_ISA={amx.WITHOUT_AMX}"):
        amx.require_bfloat16_products()


def test_a_signal_is_told_from_an_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "_multiply_and_exit", lambda: os._exit(0))
    assert amx._product_survives()
    monkeypatch.setattr(amx, "_multiply_and_exit", _die_of_an_illegal_instruction)
    assert not amx._product_survives()


def _die_of_an_illegal_instruction() -> None:
    signal.signal(signal.SIGILL, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGILL)


PRODUCTS = """
import warnings
warnings.simplefilter("ignore")
import torch
from regard.core.quantized_linear import check
check("bf16")
matrix = torch.ones(64, 64, dtype=torch.bfloat16)
print((matrix @ matrix)[0, 0].item())
"""


def test_bf16_is_computed_on_this_machine() -> None:
    """Whatever it announces: a process that asks first lives on and has the right product."""
    environment = {k: v for k, v in os.environ.items() if k != "ONEDNN_MAX_CPU_ISA"}
    result = subprocess.run(
        [sys.executable, "-c", PRODUCTS], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "64.0\n"
