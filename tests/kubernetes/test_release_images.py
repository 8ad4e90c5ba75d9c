"""An image of a release, built as `make release` builds it, is in its archive, its bill and its checksum."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from tests.kubernetes.testbed.cache import cache_folder, exclusive
from tests.kubernetes.testbed.images import base_image, base_name, builder_command
from tests.kubernetes.testbed.pods import USER
from tests.kubernetes.testbed.prerequisites import MissingPrerequisiteError, ensure_machine
from tests.kubernetes.testbed.processes import run
from tools import release, release_images

NOT_IN_IMAGES = {"pip", "pytest", "kopf", "pyspark"}


def blob(archive: tarfile.TarFile, digest: str) -> bytes:
    file = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert file is not None
    return file.read()


@pytest.mark.soak
def test_an_image_is_released_with_its_bill_of_materials_and_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        ensure_machine()
    except MissingPrerequisiteError as missing:
        pytest.skip(str(missing))
    base = base_image()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "buildah").write_text(f'#!/bin/sh\nexec {" ".join(builder_command())} "$@"\n')
    (programs / "buildah").chmod(0o755)
    with exclusive(cache_folder() / "buildah"):
        run([*builder_command(), "pull", "--quiet", f"docker-archive:{base}"], timeout_s=600)
        monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin")
        release.make_release(
            tmp_path / "release",
            images=["broker"],
            base=base_name(base),
            build_options=["--isolation=chroot", "--network=host", "--pull=false"],
        )
    number = release.version()
    archive = tmp_path / "release" / f"epochmq-broker-{number}.oci.tar"
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
        config = json.loads(blob(tar, json.loads(blob(tar, manifest["digest"]))["config"]["digest"]))
    assert manifest["annotations"]["org.opencontainers.image.ref.name"] == f"epochmq/broker:{number}"
    assert config["config"]["User"] == f"{USER}:{USER}"
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == number
    bill = json.loads((tmp_path / "release" / "epochmq-broker-image.cdx.json").read_text())
    names = {one["name"] for one in bill["components"]}
    assert {"epochmq", "msgspec", "libc6", "python3"} <= names
    assert not names & NOT_IN_IMAGES
    sums = (tmp_path / "release" / release.SUMS).read_text()
    assert f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n" in sums
    assert release_images.archive_name("broker", number) == archive.name
