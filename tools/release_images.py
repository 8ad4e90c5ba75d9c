"""Builds the images of a release by buildah from the `Dockerfile`, writes each as an OCI archive, and lists
what it contains: the packages of Debian and of Python in its layers, as a bill of materials (CycloneDX).

`skopeo copy oci-archive:FILE docker://REGISTRY/NAME:TAG` pushes an archive; `docker load` reads none, but
`skopeo copy oci-archive:FILE docker-daemon:NAME:TAG` gives it to Docker."""

from __future__ import annotations

import email.parser
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

TARGETS: Final = ("broker", "controller", "operator", "spark")
"""Targets of the `Dockerfile`. The image of a target is `epochmq/TARGET:VERSION`, as the chart expects."""
BASE: Final = "docker.io/library/python:3.11-slim-bookworm"
_DEBIAN: Final = "var/lib/dpkg/status"
_PYTHON: Final = re.compile(r"opt/epochmq/lib/python[\d.]+/site-packages/[^/]+\.dist-info/METADATA")


class ImageError(Exception):
    """An image cannot be built or read; the text says why."""


@dataclass(frozen=True, order=True)
class Package:
    """A package in an image. `kind`: `deb` or `pypi`."""

    kind: str
    name: str
    version: str

    @property
    def purl(self) -> str:
        """The package as a URL (purl-spec)."""
        vendor = "debian/" if self.kind == "deb" else ""
        return f"pkg:{self.kind}/{vendor}{quote(self.name)}@{quote(self.version)}"


def image_name(target: str, number: str) -> str:
    """The name of the image of a release."""
    return f"epochmq/{target}:{number}"


def archive_name(target: str, number: str) -> str:
    """The file of the image of a release."""
    return f"epochmq-{target}-{number}.oci.tar"


def build_image(
    root: Path, to: Path, target: str, number: str, time_s: int, *, base: str, options: Sequence[str] = ()
) -> Path:
    """Builds one target of the `Dockerfile` in `root` on the image `base`, and writes its archive into `to`.
    The times in the image are `time_s`. `options` are further options of `buildah build`. Raises
    ImageError."""
    image, archive = image_name(target, number), to / archive_name(target, number)
    build = ["build", "--quiet", "--layers", "--format=oci", f"--timestamp={time_s}", f"--target={target}"]
    labels = [f"--label=org.opencontainers.image.version={number}"]
    _run([*("buildah", *build), f"--build-arg=BASE={base}", *labels, f"--tag={image}", *options, str(root)])
    _run(["buildah", "push", "--quiet", image, f"oci-archive:{archive}:{image}"])
    return archive


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise ImageError(
            f"{command[0]} is missing: install it, or make the release with --without-images"
        ) from None
    if done.returncode:
        raise ImageError(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")


def packages(archive: Path) -> list[Package]:
    """The packages in the image of an OCI archive, sorted. Raises ImageError if the file is none."""
    debian: list[Package] = []
    python: set[Package] = set()
    try:
        with tarfile.open(archive) as outer:
            for name, text in _named_files(outer):
                if name == _DEBIAN:
                    debian = list(_debian_packages(text))  # that of the last layer which changed it
                else:
                    fields = email.parser.HeaderParser().parsestr(text)
                    python.add(Package("pypi", fields["Name"], fields["Version"]))
    except (tarfile.TarError, KeyError, json.JSONDecodeError, OSError) as error:
        raise ImageError(f"{archive} is no OCI archive of an image: {error}") from None
    return sorted([*debian, *python])


def _named_files(outer: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    """(path, text) of the files that list packages, layer by layer, the lowest one first."""
    index = json.load(_member(outer, "index.json"))
    manifest = json.load(_blob(outer, index["manifests"][0]["digest"]))
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=_blob(outer, layer["digest"]), mode="r|*") as content:
            for member in content:
                name = member.name.removeprefix("./")
                if member.isfile() and (name == _DEBIAN or _PYTHON.fullmatch(name)):
                    file = content.extractfile(member)
                    assert file is not None
                    yield name, file.read().decode("utf-8", "replace")


def _blob(outer: tarfile.TarFile, digest: str) -> IO[bytes]:
    return _member(outer, f"blobs/{digest.replace(':', '/')}")


def _member(outer: tarfile.TarFile, name: str) -> IO[bytes]:
    file = outer.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file


def _debian_packages(status: str) -> Iterator[Package]:
    """The installed packages of dpkg's `status` file."""
    for paragraph in status.split("\n\n"):
        fields = email.parser.HeaderParser().parsestr(paragraph)
        if fields["Status"] == "install ok installed":
            yield Package("deb", fields["Package"], fields["Version"])


def bill(archive: Path, target: str, number: str) -> dict[str, Any]:
    """The bill of materials of an image (CycloneDX 1.6). Raises ImageError."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": f"epochmq/{target}", "version": number}},
        "components": [
            {"type": "library", "name": one.name, "version": one.version, "purl": one.purl}
            for one in packages(archive)
        ],
    }
