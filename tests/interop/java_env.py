"""Provides the Java side of the interoperability tests: finds Java, a compiler and Maven, fetches releases of
RocketMQ once, compiles small programs against them, and runs them as processes that are always ended.

`REFERENCE` is the release that EpochMQ follows to the byte, `NEWEST` the newest one that the tests know. All
functions here work with the release in use, which is `REFERENCE` unless `using` or EPOCHMQ_ROCKETMQ (a
version) says otherwise. A process keeps the release that was in use when its object was made.

Everything is kept under `.cache/java`, keyed by content, written beside its final place and renamed, and
guarded by a file lock, so several test runs may share it. What is missing raises `JavaMissingError` with
its name; the `java` marker turns that into a skip.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import ManagedProcess

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent / "java"
CACHE = ROOT / ".cache" / "java"

JAVA_VERSION_MIN = 17
FETCH_TIMEOUT_S = 600
COMPILE_TIMEOUT_S = 480
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:2.8"

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Options of a JVM that lives for seconds: its code is compiled once, and not again for speed, and one thread
collects garbage. A broker starts in half of the time."""
FULL_SPEED = ("-XX:TieredStopAtLevel=4",)
"""Options of `jvm` for measurements: code is compiled again where it is hot."""
LOGS = ("broker.log", "broker_default.log", "namesrv.log", "rocketmq_client.log")
"""The logs of RocketMQ that the report of a failure shows; clients write to `broker_default.log`, too."""
NO_TLS = ("-Dtls.server.mode=disabled",)
"""RocketMQ's servers would make a key and a certificate at each start, which takes a second."""
TLS = ("-Dtls.server.mode=permissive",)
"""Options of `jvm` for a server that accepts TLS, by RocketMQ's default."""

ARCHIVED_JARS = re.compile(
    r"(rocketmq-(?!rocksdb|proto|tiered)[a-z0-9-]+|netty-(buffer|codec|common|handler|resolver|transport)"
    r"|netty-transport-classes-epoll|fastjson2?|guava|dledger|commons-cli|concurrentlinkedhashmap-lru)-\d"
)
"""The jars of which RocketMQ's programs use a good part. A broker that maps their classes starts with two
thirds of the CPU time."""

# RocketMQ unmaps buffers and reads direct memory counters through the JDK's internals.
OPEN_INTERNALS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)


class JavaMissingError(Exception):
    """This machine lacks something that the Java side needs; the message names it."""


class JavaFailedError(Exception):
    """A Java program or a compilation failed; the message has the end of its output."""


@dataclass(frozen=True)
class Release:
    """A release of RocketMQ, named by the `pom.xml` that lists its artifacts."""

    pom: Path

    @property
    def version(self) -> str:
        """The version, such as 5.3.3, from the one place that names it."""
        found = re.search(r"<rocketmq\.version>([^<]+)<", self.pom.read_text())
        assert found, f"{self.pom} names no rocketmq.version"
        return found.group(1)

    @property
    def library(self) -> Path:
        """Folder of the jars; its name changes with the release and with the list of artifacts."""
        digest = hashlib.sha256(self.pom.read_bytes()).hexdigest()[:8]
        return CACHE / "lib" / f"{self.version}-{digest}"


REFERENCE = Release(SOURCES / "pom.xml")
NEWEST = Release(SOURCES / "newest" / "pom.xml")
RELEASES = (REFERENCE, NEWEST)


def _asked_release() -> Release:
    """The release that EPOCHMQ_ROCKETMQ names."""
    asked = os.environ.get("EPOCHMQ_ROCKETMQ", REFERENCE.version)
    for release in RELEASES:
        if release.version == asked:
            return release
    known = ", ".join(release.version for release in RELEASES)
    raise ValueError(f"EPOCHMQ_ROCKETMQ={asked}: expected one of {known}")


_in_use = [_asked_release()]
"""The releases of the `using` blocks around the caller, the innermost last."""


def in_use() -> Release:
    """The release that the functions of this module work with."""
    return _in_use[-1]


@contextmanager
def using(release: Release) -> Iterator[None]:
    """Within the block, this module works with `release`."""
    _in_use.append(release)
    try:
        yield
    finally:
        _in_use.pop()


def made_by(release: Release, make: Callable[[Path], ManagedProcess]) -> Callable[[Path], ManagedProcess]:
    """`make`, which gets the path of a configuration, with `release` in use."""

    def make_it(config: Path) -> ManagedProcess:
        with using(release):
            return make(config)

    return make_it


def rocketmq_version() -> str:
    """The version of the release in use."""
    return in_use().version


def _version_of(tool: str) -> int:
    """The major version that a JDK tool reports (`java -version` writes to stderr, `javac -version` to
    stdout)."""
    done = subprocess.run([tool, "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r"(\d+)(?:\.\d+)*", done.stdout + done.stderr)
    return int(found.group(1)) if found else 0


@functools.cache
def _missing_tools(release: Release) -> str | None:
    missing = []
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            missing.append(f"`{tool}` {JAVA_VERSION_MIN} or newer")
        elif (version := _version_of(tool)) < JAVA_VERSION_MIN:
            missing.append(f"`{tool}` {JAVA_VERSION_MIN} or newer (this is {version})")
    if shutil.which("mvn") is None and not release.library.is_dir():
        missing.append("`mvn` (Maven, to fetch RocketMQ)")
    return ", ".join(missing) or None


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Lets one process work at a time; the others wait and then find the work done."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def java_library() -> Path:
    """Folder with all jars of the release in use, fetched by Maven on first use; JavaMissingError if that
    fails."""
    found = _library_or_reason(in_use())
    if isinstance(found, JavaMissingError):
        raise found
    return found


@functools.cache
def _library_or_reason(release: Release) -> Path | JavaMissingError:
    """The library, or why it is missing. Tried once in each process, so that a machine without Maven's
    repository does not try for every test."""
    if (missing := _missing_tools(release)) is not None:
        return JavaMissingError(f"missing: {missing}")
    library = release.library
    if library.is_dir():
        return library
    with _lock("lib"):
        if library.is_dir():
            return library
        library.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=library.parent, prefix="fetching-"))
        try:
            return _fetch(release, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _fetch(release: Release, scratch: Path) -> Path | JavaMissingError:
    """Lets Maven copy the jars into `scratch`, and renames the folder to its final name."""
    command = ["mvn", "-q", "-B", "-f", str(release.pom), f"{DEPENDENCY_PLUGIN}:copy-dependencies"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={scratch}"],
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return JavaMissingError(f"missing: RocketMQ's jars; Maven took more than {FETCH_TIMEOUT_S} s")
    if done.returncode != 0 or not any(scratch.glob("rocketmq-broker-*.jar")):
        return JavaMissingError(f"missing: RocketMQ's jars; Maven said: {_tail(done.stdout, 600)}")
    scratch.rename(release.library)
    return release.library


def java_classpath() -> str:
    """Class path with every jar of the release in use, by their names: an archive of classes is valid for one
    order only."""
    return ":".join(str(path) for path in sorted(java_library().glob("*.jar")))


def archive_options() -> list[str]:
    """Options that let a JVM map the classes of the release, already parsed and verified, from a file. A
    JVM that cannot use the file (it is for one class path and one build of the JVM) loads them as usual."""
    archive = _class_archive(in_use())
    return [] if archive is None else [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"]


@functools.cache
def _class_archive(release: Release) -> Path | None:
    """The archive for this JVM and the release in use, made on first use; None if this JVM makes none."""
    java = Path(shutil.which("java") or "java").resolve()
    default_list = java.parents[1] / "lib" / "classlist"
    if not default_list.is_file():
        return None
    key = f"{java}{java.stat().st_mtime_ns}{java_classpath()}{ARCHIVED_JARS.pattern}"
    archive = CACHE / "archives" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
    if archive.is_file():
        return archive
    with _lock("archives"):
        if archive.is_file():
            return archive
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix="archiving-") as scratch:
            names, made = Path(scratch) / "classes", Path(scratch) / archive.name
            names.write_text(default_list.read_text() + "\n".join(sorted(_archived_classes())) + "\n")
            options = ["-Xshare:dump", f"-XX:SharedClassListFile={names}", f"-XX:SharedArchiveFile={made}"]
            subprocess.run(
                ["java", *QUICK_START, *options, "-cp", java_classpath()],
                capture_output=True,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            )
            if not made.is_file():
                return None
            made.rename(archive)
    return archive


def _archived_classes() -> Iterator[str]:
    """The names of the classes that the archive has, as the JVM spells them."""
    for path in java_library().glob("*.jar"):
        if ARCHIVED_JARS.match(path.name):
            with zipfile.ZipFile(path) as jar:
                for name in jar.namelist():
                    if name.endswith(".class") and "-" not in name:  # no META-INF, package-info, module-info
                        yield name.removesuffix(".class")


def compile_java(*sources: Path | str, alone: bool = False) -> Path:
    """Compiles Java files, once for each content, and returns the folder of classes. A name means a file of
    `tests/interop/java`. All files there are compiled in one go, which takes as long as two of them, unless
    `alone` says that the folder must have the classes of `sources` only. Paths are compiled alone."""
    named = [SOURCES / source for source in sources if isinstance(source, str)]
    for path in named:
        assert path.is_file(), f"{path} is missing"
    paths = [source for source in sources if isinstance(source, Path)]
    if not paths and not alone:
        return _compile(in_use(), tuple(sorted(SOURCES.glob("*.java"))))
    return _compile(in_use(), (*named, *paths))


@functools.cache
def _compile(release: Release, paths: tuple[Path, ...]) -> Path:
    """The folder of classes, compiled against `release`, which is the one in use."""
    digest = hashlib.sha256(java_library().name.encode())
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    classes = CACHE / "classes" / digest.hexdigest()[:16]
    if classes.is_dir():
        return classes
    with _lock("classes"):
        if classes.is_dir():
            return classes
        classes.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=classes.parent, prefix="compiling-"))
        try:
            options = [f"-J{option}" for option in QUICK_START]
            options += ["-encoding", "UTF-8", "-proc:none", "-nowarn", "-Xlint:none", "-d", str(scratch)]
            done = subprocess.run(
                ["javac", *options, "-cp", java_classpath(), *map(str, paths)],
                capture_output=True,
                text=True,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise JavaFailedError(f"javac failed:\n{done.stderr[-4000:]}")
            scratch.rename(classes)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return classes


def _tail(text: str, characters: int) -> str:
    return text.strip()[-characters:]


def java_command(
    main: str,
    args: Sequence[str] = (),
    *,
    home: Path,
    classes: Path | None = None,
    heap_mb: int = 256,
    jvm: Sequence[str] = (),
) -> list[str]:
    """The command line of a JVM. RocketMQ writes its logs under `home`/logs (it goes by `user.home`). Options
    in `jvm` override the others, such as `QUICK_START` and `NO_TLS`."""
    return [
        "java",
        f"-Xms{min(heap_mb, 64)}m",
        f"-Xmx{heap_mb}m",
        *QUICK_START,
        *archive_options(),
        "-Djava.net.preferIPv4Stack=true",
        "-Dfile.encoding=UTF-8",
        f"-Duser.home={home}",
        f"-Djava.io.tmpdir={home}",  # mqadmin keeps copies of static topics there
        f"-Drocketmq.client.logRoot={home}/logs/rocketmqlogs",
        *OPEN_INTERNALS,
        *NO_TLS,
        *jvm,
        "-cp",
        java_classpath() if classes is None else f"{java_classpath()}:{classes}",
        main,
        *args,
    ]


def run_java(
    main: str,
    args: Sequence[str] = (),
    *,
    home: Path,
    classes: Path | None = None,
    heap_mb: int = 256,
    jvm: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout_s: float = 480,
    stdin: str | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs a Java program to its end; `check` raises `JavaFailedError` on a bad exit status."""
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        java_command(main, args, home=home, classes=classes, heap_mb=heap_mb, jvm=jvm),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        input=stdin,
        env={**os.environ, "ROCKETMQ_HOME": str(home), **(env or {})},
        check=False,
    )
    if check and done.returncode != 0:
        printed = f"{_tail(done.stdout, 3000)}\n{_tail(done.stderr, 3000)}"
        raise JavaFailedError(f"{main} {' '.join(args)} ended with {done.returncode}:\n{printed}")
    return done


class JavaProcess(ManagedProcess):
    """A JVM that keeps running: started, waited for by a condition, and stopped by its own process id
    only."""

    def __init__(
        self,
        main: str,
        args: Sequence[str] = (),
        *,
        home: Path,
        name: str | None = None,
        classes: Path | None = None,
        heap_mb: int = 512,
        jvm: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            java_command(main, args, home=home, classes=classes, heap_mb=heap_mb, jvm=jvm),
            name=name or main.rsplit(".", 1)[-1],
            directory=home,
            env={"ROCKETMQ_HOME": str(home), **(env or {})},
        )
        self.home = home

    def output(self, characters: int = 4000) -> str:
        """The end of its output, without the logging library's report of its own initialization."""
        lines = super().output(200_000).splitlines()
        return "\n".join(line for line in lines if "|-INFO in" not in line)[-characters:]

    def report(self, characters: int = 4000) -> str:
        """As of other processes, and the end of each log of RocketMQ."""
        parts = [super().report(characters)]
        for path in sorted((self.home / "logs" / "rocketmqlogs").glob("*.log")):
            if path.name in LOGS:
                parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-characters:]}")
        return "\n".join(parts)
