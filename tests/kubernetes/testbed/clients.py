"""Builds an image with RocketMQ's clients for pods of tests: Java's, with programs of `tests/interop/java`
and a Java runtime made by jlink, and the C++ client with its Python binding."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.interop.java_env import OPEN_INTERNALS, JavaMissingError, compile_java, java_library
from tests.kubernetes.testbed.cache import ROOT, cached, digest_of
from tests.kubernetes.testbed.images import base_image, build_image, forget_older, image_name
from tests.kubernetes.testbed.prerequisites import MissingPrerequisiteError
from tests.kubernetes.testbed.processes import run

NAME = "clients"
HOME = "/opt/clients"
PROGRAMS = ("ChaosProducer", "ChaosConsumers", "PatientProducer")
MODULES = "java.se,jdk.unsupported,jdk.crypto.ec"
BROKERS_ALONE = ("rocketmq-rocksdb-", "jraft-core-", "bcprov-", "bcpkix-")
"""Large jars that no client loads."""
DOCKERFILE = Path(__file__).resolve().parents[1] / "clients" / "Dockerfile"
CPP_CLIENT = ROOT / "tests" / "interop" / "cpp_client.py"
JLINK_TIMEOUT_S = 300


def clients_image() -> Path:
    """The image's archive; its name is `image_name("clients")`. MissingPrerequisiteError when this machine
    lacks what it is made of."""
    base, binding = base_image(), _binding()
    try:
        library = java_library()
        classes = compile_java(*(f"{one}.java" for one in PROGRAMS), alone=True)
    except JavaMissingError as missing:
        raise MissingPrerequisiteError(str(missing)) from None
    if shutil.which("jlink") is None:
        raise MissingPrerequisiteError("missing: `jlink`, which comes with a whole JDK")
    java = subprocess.run(["java", "-version"], capture_output=True, timeout=60, check=True).stderr
    digest = digest_of(
        *(base.name, library.name, classes.name, java, MODULES, repr(BROKERS_ALONE)),
        *(DOCKERFILE.read_bytes(), CPP_CLIENT.read_bytes(), (binding / "librocketmq.so").read_bytes()),
    )

    def make(archive: Path) -> None:
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            _lay_out(Path(folder), library, classes, binding)
            build_image(image_name(NAME), archive, base, DOCKERFILE, Path(folder))

    archive = cached(f"images/{NAME}-{digest}.tar", make)
    forget_older(archive, NAME)
    return archive


def _binding() -> Path:
    spec = importlib.util.find_spec("rocketmq")
    if spec is None or spec.origin is None:
        raise MissingPrerequisiteError("missing: the `rocketmq` package, the C++ client's binding")
    return Path(spec.origin).parent


def _lay_out(folder: Path, library: Path, classes: Path, binding: Path) -> None:
    strip = ("--strip-java-debug-attributes", "--no-man-pages", "--no-header-files")
    run(
        ["jlink", f"--add-modules={MODULES}", *strip, f"--output={folder / 'java'}"],
        timeout_s=JLINK_TIMEOUT_S,
    )
    (folder / "lib").mkdir()
    for jar in library.glob("*.jar"):
        if not jar.name.startswith(BROKERS_ALONE):
            shutil.copyfile(jar, folder / "lib" / jar.name)
    shutil.copytree(classes, folder / "classes")
    (folder / "classes").chmod(0o755)  # only the owner can read the cache
    unread = shutil.ignore_patterns("__pycache__")
    shutil.copytree(binding, folder / "python" / binding.name, ignore=unread)
    shutil.copyfile(CPP_CLIENT, folder / CPP_CLIENT.name)


def java_command(program: str, *arguments: str) -> Sequence[str]:
    """The command of a pod that runs one of the programs."""
    return [
        *("java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        *("-Djava.net.preferIPv4Stack=true", "-Duser.home=/tmp", "-Drocketmq.client.logRoot=/tmp/logs"),
        *OPEN_INTERNALS,
        *("-cp", f"{HOME}/classes:{HOME}/lib/*", program, *arguments),
    ]


def cpp_command(nameserver: str, plan: str) -> Sequence[str]:
    """The command of a pod whose C++ client carries out a plan (`tests/interop/cpp_client.py`)."""
    return ["python3", f"{HOME}/{CPP_CLIENT.name}", nameserver, plan]
