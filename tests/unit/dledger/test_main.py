"""The command line of a single peer has the options of DLedger's BossCommand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from epochmq_dledger import main as module

PEERS = "n0-127.0.0.1:20911;n1-127.0.0.1:20912"


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `main` runs with these arguments."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def run(*positional: Any, **named: Any) -> int:
        calls.append((positional, named))
        return 0

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(sys, "argv", ["epochmq_dledger", *arguments])
    assert module.main() == 0
    return calls[0]


def test_the_options_of_a_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = f"-g|g|-i|n1|-p|{PEERS}|-s|{tmp_path}|--file-size|4096|--flush|async"
    (settings, addresses, folder), named = called(monkeypatch, *options.split("|"))
    assert (settings.group, settings.self_id, settings.peers) == ("g", "n1", ("n0", "n1"))
    assert (settings.file_size, settings.heartbeat_interval_ms) == (4096, 2000)
    assert addresses == {"n0": "127.0.0.1:20911", "n1": "127.0.0.1:20912"}
    assert (folder, named) == (tmp_path / "dledger-n1", {"flush_async": True})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-i", "n7", "-p", PEERS, "-s", "x"), "--id: n7, expected one of n0, n1"),
        (("-p", "n0", "-s", "x"), "--peers: "),
        (("-p", PEERS), "-s/--store-base-dir"),
    ],
)
def test_wrong_options_are_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    with pytest.raises(SystemExit) as left:
        called(monkeypatch, *arguments)
    assert left.value.code == 2
    assert said in capsys.readouterr().err
