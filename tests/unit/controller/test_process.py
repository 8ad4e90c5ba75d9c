"""A process logs lines, explains errors in a sentence, and locks its directory."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from epochmq_controller import process, settings_file
from epochmq_controller.controller.server import DirectoryLock
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.log_lines import LogfmtFormatter


@dataclass
class Nothing:
    """Empty settings."""

    warnings: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def _former_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def line(message: str, *arguments: object, exc_info: bool = False) -> str:
    """The log line of a record, without its time."""
    info = sys.exc_info() if exc_info else None
    record = logging.LogRecord("a.b", logging.WARNING, "", 0, message, arguments, info)
    record.created = 1_000_000_000.25
    return LogfmtFormatter().format(record).partition(" ")[2]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("stopped", "event=stopped"),
        ("two words", 'event="two words"'),
        ("", 'event=""'),
        ('a="b"', r'event="a=\"b\""'),
        ("one\ntwo\\", r'event="one\ntwo\\"'),
    ],
)
def test_a_record_is_one_line_of_fields(message: str, shown: str) -> None:
    assert line(message) == f"level=warning logger=a.b {shown}"


def test_an_exception_is_in_the_same_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        shown = line("%s failed", "it", exc_info=True)
    assert shown.startswith('level=warning logger=a.b event="it failed" exception="Traceback')
    assert shown.endswith('ValueError: wrong"')
    assert "\n" not in shown


async def _end(status: int) -> int:
    return status


def test_a_process_exits_with_the_status_of_serve() -> None:
    assert process.run("x", Nothing, lambda _: _end(7)) == 7


def test_an_invalid_setting_exits_with_2_and_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> Nothing:
        raise ConfigError("key", "value", "something else")

    assert process.run("x", load, lambda _: _end(0)) == process.EXIT_BAD_CONFIG
    assert capsys.readouterr().err == "epochmq x: key=value: expected something else\n"


def test_an_os_error_exits_with_1_and_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(_: Nothing) -> int:
        raise OSError(98, "address in use")

    assert process.run("x", Nothing, serve) == process.EXIT_FAILED
    assert "epochmq x: [Errno 98] address in use" in capsys.readouterr().err


def test_warnings_about_the_file_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    assert process.run("x", lambda: Nothing(["k: unknown key"]), lambda _: _end(0)) == 0
    assert 'level=warning logger=epochmq_controller.process event="k: unknown key"' in capsys.readouterr().err


async def test_a_signal_requests_a_stop() -> None:
    asked = process.stop_requested()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            await asked.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def test_the_error_of_a_missing_file_names_it(tmp_path: Path) -> None:
    assert process.read_config(None) == ""
    with pytest.raises(ConfigError, match=r"--config=.*nothing\.conf: expected a readable file in UTF-8"):
        process.read_config(str(tmp_path / "nothing.conf"))
    (tmp_path / "latin.conf").write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match=r"expected a readable file in UTF-8"):
        process.read_config(str(tmp_path / "latin.conf"))


def test_only_one_process_locks_a_directory(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "deep"), DirectoryLock(tmp_path / "deep")
    first.acquire()
    with pytest.raises(OSError, match="in use by another process") as caught:
        second.acquire()
    assert caught.value.filename == str(tmp_path / "deep")
    first.release()
    second.acquire()
    second.release()
    second.release()


def test_changed_keys_go_into_the_file_and_the_rest_of_it_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("# mine\nb = 1\nc=2\n")
    settings_file.save(str(file), {"b": "3", "d": "4"})
    assert file.read_text() == "# mine\nb=3\nc=2\nd=4\n"
    settings_file.save(str(file), {})
    assert file.read_text() == "# mine\nb=3\nc=2\nd=4\n"


def test_a_request_succeeds_even_if_the_settings_file_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    settings_file.save(str(tmp_path / "file" / "a.conf"), {"b": "1"})
    assert "the settings changed, but cannot be saved" in caplog.text
