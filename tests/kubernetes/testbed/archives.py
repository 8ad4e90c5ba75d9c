"""Writes image archives in the format of `docker save`, from a folder or a file, without a builder."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

CREATED = "2000-01-01T00:00:00Z"
"""A fixed time: builders treat an image without one as a different image each time."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pack_folder(
    folder: Path, names: Sequence[str], archive: Path, architecture: str, command: Sequence[str]
) -> None:
    """Writes an image of one layer with the content of `folder`."""
    with tempfile.NamedTemporaryFile(dir=archive.parent, suffix=".tar") as layer:
        subprocess.run(
            [
                "tar",
                "--create",
                "--numeric-owner",
                "--sort=name",
                f"--directory={folder}",
                f"--file={layer.name}",
                ".",
            ],
            check=True,
        )
        _pack_layer(Path(layer.name), names, archive, architecture, command)


def pack_program(program: Path, names: Sequence[str], archive: Path, architecture: str) -> None:
    """Writes an image that contains only this static program, and runs it."""
    with tempfile.NamedTemporaryFile(dir=archive.parent, suffix=".tar") as layer:
        with tarfile.open(fileobj=layer, mode="w") as tar:
            member = tarfile.TarInfo(program.name)
            member.mode = 0o755
            member.size = program.stat().st_size
            with program.open("rb") as content:
                tar.addfile(member, content)
        layer.flush()
        _pack_layer(Path(layer.name), names, archive, architecture, [f"/{program.name}"])


def _pack_layer(
    layer: Path, names: Sequence[str], archive: Path, architecture: str, command: Sequence[str]
) -> None:
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES[architecture],
            "os": "linux",
            "config": {
                "Cmd": list(command),
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "created": CREATED,
            "history": [{"created": CREATED, "created_by": "testbed"}],
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps(
        [{"Config": config_name, "RepoTags": list(names), "Layers": [f"{digest}.tar"]}]
    ).encode()
    with tarfile.open(archive, "w") as tar:
        for member_name, data in ((config_name, config), ("manifest.json", manifest)):
            member = tarfile.TarInfo(member_name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        tar.add(layer, f"{digest}.tar", filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Removes owner and time, so that the same content gives the same archive."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
