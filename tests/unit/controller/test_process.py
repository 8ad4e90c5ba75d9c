"""A process says what it does in lines, what is wrong in a sentence, and has its folder for itself."""

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
from epochmq_controller.files import FolderLock
from epochmq_protocol.errors import ConfigError


@dataclass
class Nothing:
    """Settings without any."""

    warnings: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def _former_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def line(message: str, *arguments: object, exc_info: bool = False) -> str:
    """What the log shows of a record."""
    info = sys.exc_info() if exc_info else None
    record = logging.LogRecord("a.b", logging.WARNING, "", 0, message, arguments, info)
    record.created = 1_000_000_000.25
    return process.LogfmtFormatter().format(record).partition(" ")[2]


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


def test_an_exception_stands_in_the_same_line() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        shown = line("%s failed", "it", exc_info=True)
    assert shown.startswith('level=warning logger=a.b event="it failed" exception="Traceback')
    assert shown.endswith('ValueError: wrong"')
    assert "\n" not in shown


async def _end(status: int) -> int:
    return status


def test_a_process_ends_with_the_status_of_what_it_served() -> None:
    assert process.run("x", Nothing, lambda _: _end(7)) == 7


def test_a_setting_that_cannot_be_ends_it_with_2_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> Nothing:
        raise ConfigError("key", "value", "something else")

    assert process.run("x", load, lambda _: _end(0)) == process.EXIT_BAD_CONFIG
    assert capsys.readouterr().err == "epochmq x: key=value: expected something else\n"


def test_an_address_or_a_disk_that_cannot_be_had_ends_it_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def serve(_: Nothing) -> int:
        raise OSError(98, "address in use")

    assert process.run("x", Nothing, serve) == process.EXIT_FAILED
    assert "epochmq x: [Errno 98] address in use" in capsys.readouterr().err


def test_warnings_about_the_file_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    assert process.run("x", lambda: Nothing(["k: unknown key"]), lambda _: _end(0)) == 0
    assert 'level=warning logger=epochmq_controller.process event="k: unknown key"' in capsys.readouterr().err


async def test_a_signal_asks_it_to_stop() -> None:
    asked = process.stop_requested()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(60):
            await asked.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def test_a_missing_file_is_said_by_its_name(tmp_path: Path) -> None:
    assert process.read_config(None) == ""
    with pytest.raises(ConfigError, match=r"--config=.*nothing\.conf: expected a readable file in UTF-8"):
        process.read_config(str(tmp_path / "nothing.conf"))
    (tmp_path / "latin.conf").write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match=r"expected a readable file in UTF-8"):
        process.read_config(str(tmp_path / "latin.conf"))


def test_a_folder_belongs_to_one_at_a_time(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "deep"), FolderLock(tmp_path / "deep")
    first.take()
    with pytest.raises(OSError, match="in use by another process") as caught:
        second.take()
    assert caught.value.filename == str(tmp_path / "deep")
    first.release()
    second.take()
    second.release()
    second.release()


def test_changed_keys_go_into_the_file_and_the_rest_of_it_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_text("# mine\nb = 1\nc=2\n")
    settings_file.save(str(file), {"b": "3", "d": "4"})
    assert file.read_text() == "# mine\nb=3\nc=2\nd=4\n"
    settings_file.save(str(file), {})
    assert file.read_text() == "# mine\nb=3\nc=2\nd=4\n"


def test_a_file_that_cannot_be_written_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    settings_file.save(str(tmp_path / "file" / "a.conf"), {"b": "1"})
    assert "settings changed, but not written" in caplog.text
