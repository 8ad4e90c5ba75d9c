"""Checks that a machine can run a cluster: Linux and root, Go, and some programs of Debian packages. It
installs those where apt-get can; if anything else is missing, the tests skip and name it."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kubernetes.testbed.cache import say

GO_MIN = (1, 24)
INSTALL_TIMEOUT_S = 600
CNI_PLUGINS = Path("/usr/lib/cni")

PACKAGES = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "mount": "mount",
    "nsenter": "util-linux",
    "runc": "runc",
    "sysctl": "procps",
    str(CNI_PLUGINS / "bridge"): "containernetworking-plugins",
}
"""A program, by name or by its path outside of PATH, and the Debian package that contains it."""


class MissingPrerequisiteError(Exception):
    """This machine cannot run a cluster; the message says what it lacks."""


def ensure_machine() -> None:
    """Installs Debian packages. MissingPrerequisiteError names what this machine lacks."""
    missing = _missing()
    if missing is not None:
        raise MissingPrerequisiteError(missing)


@functools.cache
def _missing() -> str | None:
    """Cached for the process, so that a machine without a package mirror is not asked for every test."""
    lacks = []
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        lacks.append(f"Linux on x86-64 or ARM64 (this is {sys.platform} on {platform.machine()})")
    elif os.geteuid() != 0:
        lacks.append("root, for network namespaces and containers")
    if (fault := _go_fault()) is not None:
        lacks.append(fault)
    if not lacks and (fault := _namespaces_fault()) is not None:
        lacks.append(fault)
    if not lacks and (fault := _install(_absent())) is not None:
        lacks.append(fault)
    return f"missing: {', '.join(lacks)}" if lacks else None


def _go_fault() -> str | None:
    wanted = f"Go {'.'.join(map(str, GO_MIN))} or newer, to build Kubernetes"
    if shutil.which("go") is None:
        return wanted
    output = subprocess.run(["go", "version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", output)
    if found is None or (int(found[1]), int(found[2])) < GO_MIN:
        return f"{wanted} (this is {output.strip() or 'unknown'})"
    return None


def _namespaces_fault() -> str | None:
    """In a container without the capability, root cannot create namespaces."""
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return f"unshare ({error})"
    return None if tried.returncode == 0 else f"the right to make namespaces ({tried.stderr.strip()})"


def _absent() -> dict[str, str]:
    return {program: package for program, package in PACKAGES.items() if shutil.which(program) is None}


def _install(absent: dict[str, str]) -> str | None:
    """Installs these packages; returns what is still missing."""
    if not absent:
        return None
    packages = sorted(set(absent.values()))
    if shutil.which("apt-get") is None:
        return f"{', '.join(absent)} (Debian's {', '.join(packages)})"
    say(f"installing Debian packages: {' '.join(packages)}")
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    failure = ""
    # The list of packages may be old or missing; then update it and try again.
    for command in (install, ["apt-get", "update", "--quiet"], install):
        failure = _apt(command)
        if not _absent():
            return None
    return f"Debian's {', '.join(sorted(set(_absent().values())))} (apt-get said: {failure[-400:].strip()})"


def _apt(command: list[str]) -> str:
    """Runs apt-get; returns its output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"nothing within {INSTALL_TIMEOUT_S} s"
    return done.stdout + done.stderr
