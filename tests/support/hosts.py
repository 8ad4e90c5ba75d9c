"""The hosts of docs/hosts.md on this machine: their configuration files as the page has them, and the
processes as the units in systemd/ start and stop them. Each host has a loopback address, and a directory in
place of its file system."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.process import PATIENCE_S, ManagedProcess

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "systemd"
PAGE = ROOT / "docs" / "hosts.md"
PROGRAM = "/opt/epochmq/bin/epochmq"
_FILE = re.compile(r"^`/etc/epochmq/([a-z.-]+)`\n\n```properties\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHARED = "# the same on all hosts:\n"


def unit_settings(name: str) -> dict[str, str]:
    """Key → value of the unit file systemd/`name`. No key may be there twice."""
    pairs = [
        line.split("=", 1)
        for line in (UNITS / name).read_text(encoding="utf-8").splitlines()
        if "=" in line and not line.startswith("#")
    ]
    settings = dict(pairs)
    assert len(settings) == len(pairs), f"{name} sets a key twice"
    return settings


def config_files() -> dict[str, str]:
    """Name → content of each file in /etc/epochmq that the page shows: those of the first host."""
    files: dict[str, str] = dict(_FILE.findall(PAGE.read_text(encoding="utf-8")))
    assert files, f"{PAGE} shows no configuration"
    return files


class Host:
    """Host `number` (from 1) of those at `addresses`."""

    def __init__(self, number: int, addresses: Mapping[int, str], directory: Path) -> None:
        self.address = addresses[number]
        self.directory = directory
        self._number = number
        self._addresses = addresses
        etc = directory / "etc"
        etc.mkdir(parents=True)
        for name, text in config_files().items():
            own, shared, rest = text.partition(_SHARED)
            assert shared, f"{name} does not say what is the same on all hosts"
            own = own.replace("10.0.0.1", f"10.0.0.{number}").replace("=n1\n", f"=n{number}\n")
            (etc / name).write_text(self.place(own + rest), encoding="utf-8")
        for name, secret in (("member-secret", "m" * 64), ("admin-token", "t" * 64)):
            (etc / name).write_text(secret, encoding="utf-8")
            (etc / name).chmod(0o600)

    def place(self, text: str) -> str:
        """A text of the page or of a unit with this host's addresses and paths."""
        for number, address in self._addresses.items():
            text = text.replace(f"10.0.0.{number}", address)
        for path, own in (("/etc/epochmq", "etc"), ("/var/lib/epochmq", "lib"), ("/run/epochmq-", "run-")):
            text = text.replace(path, str(self.directory / own))
        return text

    def command(self, unit: str, key: str) -> list[str]:
        """The command line that a unit has as `key`."""
        program, *arguments = shlex.split(self.place(unit_settings(unit)[key].removeprefix("-")))
        assert program == PROGRAM, f"{unit} starts {program}"
        return [sys.executable, "-m", "epochmq", *arguments]

    def process(self, unit: str, more: Mapping[str, object], instance: str = "") -> ManagedProcess:
        """The process of a unit, with the directories that systemd makes for it, and with further keys."""
        settings = unit_settings(unit)
        for key, root in (("StateDirectory", "lib"), ("RuntimeDirectory", "")):
            if key in settings:
                name = settings[key].removeprefix("epochmq/").replace("epochmq-", "run-")
                (self.directory / root / name).mkdir(parents=True, exist_ok=True)
        command = [part.replace("%i", instance) for part in self.command(unit, "ExecStart")]
        command += [part for key, value in more.items() for part in ("--set", f"{key}={value}")]
        name = f"{unit.removesuffix('.service')}{instance}"
        return ManagedProcess(command, name=f"{name} of host {self._number}", directory=self.directory / name)

    def stop(self, unit: str, process: ManagedProcess) -> subprocess.CompletedProcess[bytes]:
        """What `systemctl stop` does: the unit's own command, then SIGTERM. Returns how the command ended."""
        done = subprocess.run(
            self.command(unit, "ExecStop"), capture_output=True, timeout=PATIENCE_S, check=False
        )
        process.stop()
        return done
