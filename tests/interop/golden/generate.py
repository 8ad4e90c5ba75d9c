"""Records how RocketMQ's own classes encode known values: `python -m tests.interop.golden.generate [FOLDER]`
writes the JSON files that the unit tests of the protocol compare with (by default in place)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from epochmq_protocol import bodies, subscription_groups, topics
from epochmq_protocol.bodies_base import Body
from tests.interop.java_env import compile_java, java_library, run_java
from tests.support.header_classes import HEADERS

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parents[1] / "unit" / "protocol" / "golden"
"""The recorded files."""

NOT_JAVA = {
    "Body": "our base class",
    "DelayOffsetSerializeWrapper": "lives in the broker and is not public",
    "TimerMetricsEntry": "an inner class",
    "TimerMetricsSerializeWrapper": "an inner class",
    "KVConfigSerializeWrapper": "lives in the nameserver",
    "ConsumerOrderInfoWrapper": "written by a manager that is the body itself",
    "TopicConfigSerializeWrapper": "described under the name of its subclass",
}
"""EpochMQ's bodies without a Java class of the same name."""


def body_names() -> list[str]:
    """Names of all bodies that are declared here."""
    found = {
        value.__name__
        for module in (bodies, subscription_groups, topics)
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith("epochmq_protocol")
        if issubclass(value, Body)
        or value.__name__ in ("TopicConfig", "SubscriptionGroupConfig", "DataVersion", "GroupRetryPolicy")
    }
    return sorted(found - NOT_JAVA.keys())


def header_names() -> list[str]:
    """Names of all headers."""
    return list(HEADERS)


def _java_classes() -> dict[str, str]:
    """Simple name -> class name, over the jars of the release; inner classes as `Outer$Inner`."""
    import zipfile

    found: dict[str, str] = {}
    for pattern in ("rocketmq-remoting-*.jar", "rocketmq-common-*.jar"):
        for jar in sorted(java_library().glob(pattern)):
            for entry in zipfile.ZipFile(jar).namelist():
                if entry.endswith(".class"):
                    name = entry.removesuffix(".class").replace("/", ".")
                    found.setdefault(name.rpartition(".")[2].rpartition("$")[2], name)
    return found


def generate(folder: Path) -> None:
    """Writes all files into `folder`."""
    java = _java_classes()
    lines = [f"header:{name}={java[name]}" for name in header_names()]
    lines += [f"body:{name}={java[name]}" for name in body_names()]
    with tempfile.TemporaryDirectory() as scratch:
        names = Path(scratch) / "classes.txt"
        names.write_text("\n".join(lines) + "\n")
        classes = compile_java(HERE / "GoldenBytes.java")
        run_java("GoldenBytes", [str(folder), str(names)], home=Path(scratch) / "home", classes=classes)
        classes = compile_java(HERE / "AuthVectors.java")
        auth = str(folder / "auth.json")
        run_java("AuthVectors", [auth], home=Path(scratch) / "home", classes=classes)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else RECORDED)
