"""Reads a password: from a file, from a prompt on the terminal, or from the first line of the input.

There is no option that takes the password itself: other users of the machine see arguments, and shells keep
them."""

from __future__ import annotations

import getpass
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from epochmq.exits import UsageError, print_error
from epochmq.profile import OTHERS_MAY

PASSWORD_BYTES_MAX = 1024


def read_password(file: Path | None, user: str) -> str:
    """The password from the file, where `-` is the standard input. Without a file it is asked for on the
    terminal, twice, and read from the standard input where that is no terminal. Raises UsageError."""
    if file is not None and str(file) != "-":
        return _from_file(file)
    if file is None and sys.stdin.isatty():
        password = checked_password("the password", getpass.getpass(f"Password of {user}: ").encode())
        if getpass.getpass("Again: ") != password:
            raise UsageError("the two passwords differ; nothing was changed")
        return password
    return checked_password("the standard input", _line(sys.stdin.buffer))


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            line = _line(file)
    except OSError as error:
        raise UsageError(f"--password-file {path} cannot be read: {error.strerror}") from None
    password = checked_password(f"--password-file {path}", line)
    if stat.S_ISREG(mode) and mode & OTHERS_MAY:
        print_error(f"--password-file {path}: other users may read it; correct it with: chmod 600 {path}")
    return password


def _line(file: BinaryIO) -> bytes:
    """What the file has, without the line end. One byte more than a password may have is read."""
    return file.read(PASSWORD_BYTES_MAX + 1).removesuffix(b"\n").removesuffix(b"\r")


def checked_password(source: str, line: bytes) -> str:
    """The password in these bytes. No error shows it. Raises UsageError, which names the source."""
    if len(line) > PASSWORD_BYTES_MAX:
        raise UsageError(f"{source}: expected a password of at most {PASSWORD_BYTES_MAX} bytes")
    try:
        password = line.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{source}: expected a password in UTF-8") from None
    if not password.strip():
        raise UsageError(f"{source}: expected a password, and there is none")
    if not password.isprintable():
        raise UsageError(f"{source}: expected a password in one line, without control characters")
    return password
