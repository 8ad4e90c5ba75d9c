"""Implements `epochmq support-bundle`: packs what somebody needs who helps with a run on this machine,
without secrets.

Nothing of the data is in it: no message, no user, and of logs the last lines only."""

from __future__ import annotations

import asyncio
import io
import os
import platform
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.secret_removal import (
    PRIVATE_KEY,
    SecretRemoval,
    is_secret_key,
    names_a_file,
    secrets_in_json,
    secrets_in_settings,
)
from epochmq_operator.local import status
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.status_model import StatusReport
from epochmq_protocol import properties
from epochmq_protocol.admin_api.common_operations import installed_version
from epochmq_protocol.errors import EpochMQError

FILE_BYTES_MAX = 4 * 1024 * 1024
"""Of a configuration file, of a log's last lines, and of the metrics of one sidecar."""
METRICS_TIMEOUT_S = 5
STATE_FILES = ("resources.json", "options.json", "quorums.json", "network.json", "pods.json")
SECRET_FILES = ("member-secret", "admin-token")
ENDINGS = (".tar.gz", ".tgz")
FOLDER = "epochmq-support"
"""The folder in a bundle that the console makes."""
LINES_DEFAULT = 2000
"""How many lines of each log a bundle has."""


def run(file: Path, state: Path, *, lines: int) -> int:
    """Writes the bundle, and prints what is in it. Its owner alone may read it."""
    if not file.name.endswith(ENDINGS):
        raise UsageError(f"FILE {file}: expected a name that ends with {' or '.join(ENDINGS)}")
    directory = StateDirectory(state)
    if not directory.exists():
        print_error(f"nothing was ever run in {state}; name the state directory with --state DIR")
        return ExitCode.NOTHING
    contents = collect(directory, lines)
    try:
        opened = open(file, "xb", opener=_for_the_owner)  # noqa: SIM115 (Path.open takes no opener)
    except FileExistsError:
        raise UsageError(f"FILE {file} exists; give another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"FILE {file} cannot be written: {error.strerror}") from None
    try:
        with opened as output:
            pack(output, file.name.removesuffix(".tgz").removesuffix(".tar.gz"), contents)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    for name in contents:
        print(name)
    print_error(f"{file}: {len(contents)} files, without secrets; look through them before you send it")
    return ExitCode.OK


def collect(directory: StateDirectory, lines: int) -> dict[str, str]:
    """The texts of the bundle by their names, without secrets. What cannot be read is named in `omitted`."""
    removal = SecretRemoval(_secrets_of(directory.path))
    omitted: list[str] = []
    contents = {"versions.json": removal.clean_json(_versions())}
    report = _status(directory, omitted)
    if report is not None:
        contents["status.json"] = removal.clean_json(msgspec.json.encode(report).decode())
    for name in STATE_FILES:
        text = _text(directory.path / name, omitted)
        if text is not None:
            contents[name] = removal.clean_json(text)
    for path in sorted((directory.path / "config").glob("*/*")):
        name = str(path.relative_to(directory.path))
        text = _text(path, omitted)
        if text is None:
            continue
        if PRIVATE_KEY in text:
            omitted.append(f"{name}: it has a private key")
        elif path.suffix == ".json":
            contents[name] = removal.clean_json(text)
        else:
            contents[name] = removal.clean_settings(text)
    for path in (directory.supervisor_log, *sorted((directory.path / "logs").glob("*.log"))):
        tail = _last_lines(path, lines, omitted)
        if tail is not None:
            contents[str(path.relative_to(directory.path))] = removal.clean(tail)
    for pod, address in _sidecars(report):
        metrics = _metrics(address, omitted)
        if metrics is not None:
            contents[f"metrics/{pod}.txt"] = removal.clean(metrics)
    if omitted:
        contents["omitted.txt"] = removal.clean("".join(f"{line}\n" for line in omitted))
    return contents


def packed(state: Path) -> bytes:
    """The bundle of a run as a tar archive with gzip. Raises UsageError if nothing was ever run there."""
    directory = StateDirectory(state)
    if not directory.exists():
        raise UsageError(f"nothing was ever run in {state}")
    output = io.BytesIO()
    pack(output, FOLDER, collect(directory, LINES_DEFAULT))
    return output.getvalue()


def pack(output: IO[bytes], folder: str, contents: dict[str, str]) -> None:
    """Writes the texts into a folder of a tar archive with gzip."""
    now = time.time()
    with tarfile.open(fileobj=output, mode="w:gz") as archive:
        for name, text in contents.items():
            data = text.encode(errors="replace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(data), int(now), 0o600
            archive.addfile(member, io.BytesIO(data))


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _versions() -> str:
    found = {
        "epochmq": installed_version(),
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return msgspec.json.encode(found).decode()


def _status(directory: StateDirectory, omitted: list[str]) -> StatusReport | None:
    try:
        return status.report(directory, asyncio.run(status.observe(directory)))
    except (EpochMQError, OSError) as error:
        omitted.append(f"status.json: {error}")
        return None


def _sidecars(report: StatusReport | None) -> list[tuple[str, str]]:
    """(pod, address) of the sidecars of the run."""
    if report is None:
        return []
    brokers = [one for group in report.broker_groups for one in group.replicas]
    pods = [*report.nameserver_pods, *report.controllers, *brokers]
    return [(one.pod, one.admin_address) for one in pods if one.admin_address is not None]


def _metrics(address: str, omitted: list[str]) -> str | None:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=METRICS_TIMEOUT_S) as response:
            return str(response.read(FILE_BYTES_MAX).decode(errors="replace"))
    except (OSError, ValueError) as error:
        omitted.append(f"metrics of {address}: {error}")
        return None


def _text(path: Path, omitted: list[str]) -> str | None:
    """The text of a file; None if it is not there, cannot be read, is too long or is no text."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            omitted.append(f"{path.name}: it is longer than {FILE_BYTES_MAX} bytes")
            return None
        return data.decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        omitted.append(f"{path.name}: {error}")
        return None


def _last_lines(path: Path, lines: int, omitted: list[str]) -> str | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            start = file.seek(max(size - FILE_BYTES_MAX, 0))
            data = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        omitted.append(f"{path.name}: {error}")
        return None
    if start:
        data = data.partition(b"\n")[2]
    return "".join(data.decode(errors="replace").splitlines(keepends=True)[-lines:])


def _secrets_of(state: Path) -> Iterator[str]:
    """Every secret of the run: of its own files, of configurations and the files that they name, and the
    passwords of users."""
    for name in SECRET_FILES:
        yield _text(state / name, []) or ""
    for name in STATE_FILES:
        yield from secrets_in_json(_text(state / name, []) or "")
    for path in sorted((state / "config").glob("*/*")):
        text = _text(path, []) or ""
        yield from secrets_in_json(text)
        yield from secrets_in_settings(text)
        for key, value in properties.parse(text).items():
            if is_secret_key(key) and names_a_file(key):
                content = _text(Path(value), []) or ""
                yield from secrets_in_settings(content)
                yield from (line for line in content.splitlines() if "=" not in line)
    for path in sorted((state / "volumes").glob("*/*/config/auth.json")):
        yield from secrets_in_json(_text(path, []) or "")
