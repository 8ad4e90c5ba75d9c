"""The images of a cluster: the project's own, built from its `Dockerfile`, and what they need here: a base
image with Python, made by debootstrap, because no registry of images is asked.

Archives are kept in the cache by what they are made of. So are the layers of the builder, so that a changed
source file costs seconds."""

from __future__ import annotations

import configparser
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.kubernetes.testbed.archives import pack_folder, pack_program
from tests.kubernetes.testbed.cache import ROOT, cache_folder, cached, digest_of, exclusive, say
from tests.kubernetes.testbed.node import PAUSE_IMAGE
from tests.kubernetes.testbed.processes import run
from tools.rooms import source_roots

SUITE = "bookworm"
BASE_PACKAGES = ("ca-certificates", "procps", "python3", "python3-venv")
BASE_NAME = "docker.io/testbed/base"
BASE_IMAGE = f"{BASE_NAME}:test"
"""The name in pods of tests; builds use the content's digest."""
TARGETS = ("broker", "controller", "operator", "spark")
SOURCES = (
    *("Dockerfile", ".dockerignore", "images", "pyproject.toml", "README.md", "LICENSE", "systemd"),
    *source_roots(),
)
"""The sources of the `Dockerfile`, besides the lock files."""
FORMAT = "4"
"""Change this with the format of archives; it is part of the cache's keys."""
KEPT_PER_TARGET = 3
LAYERS_MAX = 150
"""About fifteen layers for each change of the sources; the layers with packages, 200 MB in all, rarely
change."""
BUILD_TIMEOUT_S = 1200
USELESS = (
    *("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man"),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
)


def pause_image(programs: Path) -> Path:
    """The archive of the pause image, whose process holds a pod's namespaces."""
    program = programs / "pause"
    path = f"images/pause-{digest_of(programs.name, FORMAT)}.tar"
    return cached(path, lambda archive: pack_program(program, [PAUSE_IMAGE], archive, platform.machine()))


def base_image() -> Path:
    """The archive of the base image: Debian with Python and this machine's settings of pip."""
    settings = _pip_settings()
    authorities = Path(settings["cert"]).read_bytes() if "cert" in settings else b""
    digest = digest_of(SUITE, *BASE_PACKAGES, *USELESS, repr(settings), authorities, FORMAT)
    return cached(f"images/base-{digest}.tar", lambda archive: _make_base(archive, digest, settings))


def base_name(archive: Path) -> str:
    """The base image's name for builds."""
    return f"{BASE_NAME}:{archive.stem.removeprefix('base-')}"


def _pip_settings() -> dict[str, str]:
    """The settings of pip on this machine that a build in a container needs, too."""
    printed = run([sys.executable, "-m", "pip", "config", "list"])
    settings = {}
    for line in printed.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2].replace("_", "-")
        if key in ("cert", "index-url", "extra-index-url", "trusted-host", "default-timeout", "proxy"):
            settings[key] = value.strip("'\"")
    return settings


def _make_base(archive: Path, digest: str, settings: dict[str, str]) -> None:
    say(f"making a base image: Debian {SUITE} with Python (a minute)")
    tree = archive.parent / "tree"
    include = ",".join(BASE_PACKAGES)
    run(["debootstrap", "--variant=minbase", f"--include={include}", SUITE, tree], timeout_s=BUILD_TIMEOUT_S)
    for name in USELESS:
        shutil.rmtree(tree / name, ignore_errors=True)
        (tree / name).mkdir(parents=True)
    if "cert" in settings:
        shutil.copyfile(settings["cert"], tree / "etc/testbed-authorities.pem")
        settings = {**settings, "cert": "/etc/testbed-authorities.pem"}
    pip = configparser.ConfigParser(interpolation=None)
    pip["global"] = settings
    with (tree / "etc/pip.conf").open("w") as file:
        pip.write(file)
    pack_folder(tree, [BASE_IMAGE, f"{BASE_NAME}:{digest}"], archive, platform.machine(), ["python3"])
    shutil.rmtree(tree, ignore_errors=True)


def project_images(targets: Iterable[str] = TARGETS) -> dict[str, Path]:
    """The archives of these targets of the `Dockerfile`, built from the present sources, by target. The
    image's name is `image_name(target)`."""
    base = base_image()
    digest = digest_of(base.name, *_contents())
    archives = {}
    for target in targets:
        path = f"images/{target}-{digest}.tar"
        archives[target] = cached(path, lambda archive, target=target: _build(target, archive, base))
        forget_older(archives[target], target)
    return archives


def image_name(target: str) -> str:
    """The name for pods; their pull policy must be Never or IfNotPresent."""
    return f"docker.io/epochmq/{target}:test"


def _contents() -> Iterable[bytes]:
    places = [ROOT / name for name in SOURCES] + sorted(ROOT.glob("requirements*.lock"))
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT)).encode()
                yield path.read_bytes()


def forget_older(newest: Path, target: str) -> None:
    """Keeps the last few archives of a target."""
    os.utime(newest)
    archives = sorted(newest.parent.glob(f"{target}-*.tar"), key=lambda path: path.stat().st_mtime)
    for archive in archives[:-KEPT_PER_TARGET]:
        archive.unlink(missing_ok=True)


def _build(target: str, archive: Path, base: Path) -> None:
    build_image(image_name(target), archive, base, ROOT / "Dockerfile", ROOT, f"--target={target}")


def build_image(image: str, archive: Path, base: Path, file: Path, context: Path, *more: str) -> None:
    """Builds an image on the base image (argument BASE of the file) and writes its archive."""
    say(f"building {image}")
    with exclusive(cache_folder() / "buildah"):
        _bound_storage()
        name = base_name(base)
        known = subprocess.run(_buildah("inspect", "--type", "image", name), capture_output=True, check=False)
        if known.returncode != 0:
            run(_buildah("pull", "--quiet", f"docker-archive:{base}"), timeout_s=BUILD_TIMEOUT_S)
        run(
            _buildah(
                *(
                    "build",
                    "--layers",
                    "--isolation=chroot",
                    "--network=host",
                    "--pull=false",
                    "--format=docker",
                ),
                *(f"--build-arg=BASE={name}", f"--tag={image}", *more),
                *(f"--file={file}", str(context)),
            ),
            timeout_s=BUILD_TIMEOUT_S,
        )
        run(
            _buildah("push", "--quiet", image, f"docker-archive:{archive}:{image}"), timeout_s=BUILD_TIMEOUT_S
        )


def _bound_storage() -> None:
    """Removes all layers of the builder when there are too many; the next build then takes a minute
    longer."""
    storage = cache_folder() / "buildah"
    layers = storage / "root/overlay-layers/layers.json"
    if layers.exists() and len(json.loads(layers.read_text())) > LAYERS_MAX:
        say("emptying the builder's storage")
        shutil.rmtree(storage)


def builder_command() -> list[str]:
    """Buildah with its own storage and mounts, so that it neither changes the user's nor leaves any. By its
    path: a test may have another program of this name on PATH."""
    storage = cache_folder() / "buildah"
    places = [f"--root={storage}/root", f"--runroot={storage}/run", "--storage-driver=overlay"]
    return ["unshare", "--mount", shutil.which("buildah") or "buildah", *places]


def _buildah(*arguments: str) -> list[str]:
    return [*builder_command(), *arguments]
