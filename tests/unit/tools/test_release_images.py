"""The images of a release: those that the chart names, and a bill of materials of what is in an archive."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from tools import release, release_images
from tools.release_images import ImageError, Package

SITE = "opt/epochmq/lib/python3.11/site-packages"
STATUS = "Package: {0}\nStatus: {2}\nVersion: {1}\nDescription: a tool\n with more lines\n"


def layer(files: dict[str, str]) -> bytes:
    """A layer with these files, compressed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        add(tar, {f"./{name}": text.encode() for name, text in files.items()})
    return out.getvalue()


def add(tar: tarfile.TarFile, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))


def write_archive(path: Path, layers: list[bytes]) -> Path:
    """An OCI archive of an image with these layers."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}"}

    manifest = blob(json.dumps({"layers": [blob(data) for data in layers]}).encode())
    with tarfile.open(path, "w") as tar:
        add(tar, {**blobs, "index.json": json.dumps({"manifests": [manifest]}).encode()})
    return path


def test_a_bill_lists_the_packages_of_the_last_layer_that_has_them(tmp_path: Path) -> None:
    base = "\n".join(
        [
            STATUS.format("libc6", "2.36-9+deb12u10", "install ok installed"),
            STATUS.format("perl", "5.36", "deinstall ok config-files"),
        ]
    )
    upper = base + "\n" + STATUS.format("java", "17", "install ok installed")
    archive = write_archive(
        tmp_path / "image.oci.tar",
        [
            layer({"var/lib/dpkg/status": base}),
            layer({"var/lib/dpkg/status": upper}),
            layer({f"{SITE}/uvloop-0.23.dist-info/METADATA": "Name: uvloop\nVersion: 0.23\n\nText"}),
        ],
    )
    assert release_images.packages(archive) == [
        Package("deb", "java", "17"),
        Package("deb", "libc6", "2.36-9+deb12u10"),
        Package("pypi", "uvloop", "0.23"),
    ]
    bill = release_images.bill(archive, "broker", "1.2.3")
    assert bill["metadata"]["component"] == {
        "type": "container",
        "name": "epochmq/broker",
        "version": "1.2.3",
    }
    assert [one["purl"] for one in bill["components"]] == [
        "pkg:deb/debian/java@17",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10",
        "pkg:pypi/uvloop@0.23",
    ]


def test_another_file_is_called_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ImageError, match=r"text is no OCI archive of an image"):
        release_images.packages(tmp_path / "text")


def test_a_missing_builder_is_named_with_the_way_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageError, match=r"buildah is missing: install it, or .* --without-images"):
        release_images.build_image(release.ROOT, tmp_path, "broker", "1", 0, base="none")


def test_the_images_are_those_that_the_chart_names_and_stages_of_the_dockerfile() -> None:
    """And their base is the default of the `Dockerfile`."""
    config = (release.CHART / "templates/configmap.yaml").read_text(encoding="utf-8")
    values = (release.CHART / "values.yaml").read_text(encoding="utf-8")
    named = set(re.findall(r'epochmq.groupImage" \(dict .*?"name" "(\w+)"', config)) | set(
        re.findall(r"repository: epochmq/(\w+)", values)
    )
    dockerfile = (release.ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert named == set(release_images.TARGETS)
    assert named <= set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    base = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    assert base is not None
    assert f"docker.io/library/{base[1]}" == release_images.BASE
