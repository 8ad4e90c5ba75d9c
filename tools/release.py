"""Makes what a release consists of (`make release`): wheel and source distribution, the chart as a package of
Helm's, the images as OCI archives, a bill of materials (CycloneDX) for each lock file of an image and for
each image, and the checksums of them all.

The same commit gives the same bytes, except of images: times come from it (`SOURCE_DATE_EPOCH`). Images
contain packages of Debian, which its mirrors replace."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from tools import release_images
from tools.release_images import ImageError

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "charts" / "epochmq-operator"
BILLS: Final = ("runtime", "operator", "spark")
"""The lock files that images are built from: `requirements-NAME.lock`."""
SUMS: Final = "SHA256SUMS"


class ReleaseError(Exception):
    """A release cannot be made; the text says why."""


def version() -> str:
    """The version in pyproject.toml. Raises ReleaseError if another file names another one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    sidecar = (ROOT / "sidecar/epochmq_sidecar/openapi.py").read_text(encoding="utf-8")
    named = re.search(r'"version": "([^"]+)"', sidecar)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    listed = re.search(r"^## ([^,\n]+)", changes, re.MULTILINE)
    found = {
        "charts/epochmq-operator/Chart.yaml version": chart["version"],
        "charts/epochmq-operator/Chart.yaml appVersion": chart["appVersion"],
        "sidecar/epochmq_sidecar/openapi.py version": named[1] if named else None,
        "CHANGELOG.md, first section,": listed[1] if listed else None,
    }
    for field, value in found.items():
        if value != project:
            raise ReleaseError(f"{field} is {value!r}, expected {project!r} as in pyproject.toml")
    return str(project)


def commit_time() -> int:
    """Seconds since 1970 of the commit that is released."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return int(done.stdout)


def build_distributions(to: Path) -> None:
    """Wheel and source distribution, by the build backend that is installed here, at its pinned version."""
    command = ["build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(to)]
    run([str(Path(sys.executable).with_name("uv")), *command, str(ROOT)])
    (to / ".gitignore").unlink(missing_ok=True)


def pack_chart(to: Path, number: str, time_s: int) -> None:
    """The chart as `helm package` makes it, except that owners and times do not depend on the machine."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = time_s
        member.mode = 0o644
        return member

    files = [path for path in sorted(CHART.rglob("*")) if path.is_file()]
    path = to / f"{CHART.name}-{number}.tgz"
    with (
        path.open("wb") as out,
        gzip.GzipFile("", "wb", mtime=time_s, fileobj=out) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for file in files:
            archive.add(file, str(file.relative_to(CHART.parent)), filter=plain)


def write_bill(to: Path, name: str) -> None:
    """What an image with the packages of `requirements-NAME.lock` contains."""
    out = to / f"epochmq-{name}.cdx.json"
    command = ["requirements", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    lock = ROOT / f"requirements-{name}.lock"
    run([sys.executable, "-m", "cyclonedx_py", *command, "-o", str(out), str(lock)])


def write_sums(to: Path) -> None:
    """The checksums of all files, as `sha256sum --check` reads them."""
    files = [path for path in sorted(to.iterdir()) if path.name != SUMS]
    lines = [f"{_digest(path)}  {path.name}\n" for path in files]
    (to / SUMS).write_text("".join(lines), encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_images(
    to: Path, number: str, time_s: int, targets: Sequence[str], base: str, options: Sequence[str]
) -> None:
    """The images and their bills of materials. Raises ReleaseError."""
    try:
        for target in targets:
            archive = release_images.build_image(ROOT, to, target, number, time_s, base=base, options=options)
            text = json.dumps(release_images.bill(archive, target, number), indent=2)
            (to / f"epochmq-{target}-image.cdx.json").write_text(f"{text}\n", encoding="utf-8")
    except ImageError as error:
        raise ReleaseError(str(error)) from None


def run(command: list[str]) -> None:
    """Runs a tool. Raises ReleaseError with what it said if it fails."""
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed ({done.returncode}):\n{done.stdout}{done.stderr}")


def make_release(
    to: Path,
    *,
    images: Sequence[str] = (),
    base: str = release_images.BASE,
    build_options: Sequence[str] = (),
) -> None:
    """Writes a release into an empty or new directory. `images`: targets of the `Dockerfile`, built on the
    image `base` with further options of buildah. Raises ReleaseError."""
    number, time_s = version(), commit_time()
    if to.exists() and any(to.iterdir()):
        raise ReleaseError(f"{to} is not empty; a release needs a new directory")
    to.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(time_s)
    build_distributions(to)
    pack_chart(to, number, time_s)
    for name in BILLS:
        write_bill(to, name)
    write_images(to, number, time_s, images, base, build_options)
    write_sums(to)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Makes what a release consists of.")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "release", help="a new directory")
    parser.add_argument("--base", default=release_images.BASE, help="the base of the images")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--without-images", action="store_true", help="build no images, which needs buildah")
    which.add_argument(
        "--image", action="append", choices=release_images.TARGETS, help="build this image only"
    )
    parser.add_argument(
        "--build-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="a further option of buildah build",
    )
    given = parser.parse_args()
    to: Path = given.to
    images = () if given.without_images else given.image or release_images.TARGETS
    try:
        make_release(to, images=images, base=given.base, build_options=given.build_option)
    except ReleaseError as error:
        raise SystemExit(str(error)) from None
    for path in sorted(to.iterdir()):
        print(path)


if __name__ == "__main__":
    main()
