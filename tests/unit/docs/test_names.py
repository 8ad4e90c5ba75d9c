"""Every configuration key, field, metric, HTTP path, environment variable and message that the documentation
names is one that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
import pytest
import yaml

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_controller.controller import config as controller_config
from epochmq_controller.nameserver import config as nameserver_config
from epochmq_operator.kube.config import OperatorConfig
from epochmq_protocol.broker_keys import REJECTED_UNLESS, WITHOUT_EFFECT
from epochmq_sidecar import metrics
from epochmq_sidecar.config import SidecarConfig
from epochmq_sidecar.openapi import PATHS
from tests.unit.docs.mqadmin_commands import COMMANDS
from tests.unit.docs.pages import ROOT, Page, pages, tracked
from tools.rooms import source_roots

PAGES = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
SOURCES = (*(f"{root}/" for root in source_roots()), "charts/")
CAMEL = re.compile(r"(?<![\w./-])([a-z]+(?:[A-Z][A-Za-z0-9]*)+)(?![\w(/.-])")
DOTTED = re.compile(r"(?:spec|status|crds|image|monitoring|storage|admin|executors)(?:\.[A-Za-z]+)+")
ROCKETMQS = {"pollNameServerInterval", "vipChannelEnabled", "defaultRocksDB", "logicsMsgTimestamp"}
ROCKETMQS |= {"enableSplitMetadata"}
"""Settings of RocketMQ's clients, a value, a field of its checkpoint, and a key of its newer brokers, which
the sources never spell."""
WRONG_ON_PURPOSE = {"flushDiskTyp"}


@cache
def config_keys() -> set[str]:
    """Keys of the configuration files of every process."""
    keys = {*WITHOUT_EFFECT, *REJECTED_UNLESS, *controller_config.KEYS, *nameserver_config.KEYS}
    keys |= {
        field.encode_name for kind in (BrokerConfig, SidecarConfig) for field in msgspec.structs.fields(kind)
    }
    return keys | {info.alias or name for name, info in OperatorConfig.model_fields.items()}


@cache
def resource_paths() -> set[str]:
    """`spec.storage.size` and so on, of every resource; also without what stands before the last two."""

    def below(schema: Any, path: str) -> Iterator[str]:
        for name, inner in schema.get("properties", {}).items():
            yield (here := f"{path}.{name}" if path else name)
            yield from below(inner, here)
        if "items" in schema:
            yield from below(schema["items"], path)

    found: set[str] = set()
    for file in (ROOT / "charts/epochmq-operator/files/crds").glob("*.yaml"):
        for version in yaml.safe_load(file.read_text())["spec"]["versions"]:
            found |= set(below(version["schema"]["openAPIV3Schema"], ""))
    return found


@cache
def chart_values() -> set[str]:
    """`monitoring.podMonitor.enabled` and so on."""

    def below(values: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, inner in values.items():
            yield (here := f"{path}.{name}" if path else name)
            if isinstance(inner, dict):
                yield from below(inner, here)

    return set(below(yaml.safe_load((ROOT / "charts/epochmq-operator/values.yaml").read_text()), ""))


@cache
def sources() -> str:
    """The text of what is shipped, and of the tests that call `mqadmin`."""
    files = [file for file in tracked() if file.startswith(SOURCES) or file.startswith("tests/interop/")]
    texts = [ROOT.joinpath(file).read_text(errors="replace") for file in files if not file.endswith(".md")]
    return "\n".join(texts)


@cache
def written() -> set[str]:
    """Words in camelCase that the sources write, and those that structs write for fields in snake_case."""
    text = sources()
    fields = re.findall(r"^ {4}([a-z]+(?:_[a-z0-9]+)+): ", text, re.MULTILINE)
    camel = {
        head + "".join(map(str.capitalize, tail)) for head, *tail in (name.split("_") for name in fields)
    }
    return camel | set(re.findall(r"\b[a-z]+(?:[A-Z][A-Za-z0-9]*)+\b", text))


@cache
def metric_names() -> set[str]:
    """The names of all metrics."""
    return {f"epochmq_{name}" for name in metrics.HELP} | set(re.findall(r"\bepochmq_[a-z_]+", sources()))


@cache
def environment_variables() -> set[str]:
    """Those that the sources, the tests and the tools name."""
    text = sources() + "\n".join((ROOT / file).read_text() for file in tracked() if file.endswith(".py"))
    return set(re.findall(r"EPOCHMQ_[A-Z_]+", text))


@PAGES
def test_every_key_and_field_exists(page: Page) -> None:
    known = config_keys() | {part for path in resource_paths() | chart_values() for part in path.split(".")}
    known |= written() | ROCKETMQS | WRONG_ON_PURPOSE | COMMANDS
    named = {key for word in page.words for key in CAMEL.findall(word)}
    named |= {key for line in page.lines for key in re.findall(r"^([a-z]\w*[A-Z]\w*)=", line)}
    assert named - known == set()


@PAGES
def test_every_path_to_a_field_exists(page: Page) -> None:
    known = resource_paths() | {path.partition(".")[2] for path in resource_paths()} | chart_values()
    named = {path for word in page.words for path in DOTTED.findall(word) if path == word.partition(":")[0]}
    config = {path for path in named if path.startswith("spec.config.")}
    assert named - config - known == set()
    assert {path.removeprefix("spec.config.") for path in config} <= config_keys()


@PAGES
def test_every_metric_exists(page: Page) -> None:
    packages = {file.split("/")[1] for file in tracked() if re.match(r"\w+/epochmq_\w+/", file)}
    named = {word for word in page.words if re.fullmatch(r"epochmq_[a-z_]+", word)}
    assert named - metric_names() - packages == set()


@PAGES
def test_every_http_path_exists(page: Page) -> None:
    known = {path for _, path in PATHS} | {"/metrics", "/live", "/ready"}
    named = {
        path
        for word in page.words
        for path in re.findall(r"(?:^| )(/(?:v1/[\w-]+|live|ready|metrics))", word)
    }
    assert named - known == set()


@PAGES
def test_every_environment_variable_exists(page: Page) -> None:
    named = set(re.findall(r"\bEPOCHMQ_[A-Z_]+", page.text))
    assert named - environment_variables() == set()


def test_every_message_in_the_operations_page_is_one_that_the_code_writes() -> None:
    page = next(page for page in pages() if page.name == "docs/operations.md")
    bold = re.findall(r"^\*\*`([^`]+)`", page.prose, re.MULTILINE)
    faults = page.prose[page.prose.index("### Disk failures") :]
    rows = re.findall(r"^\| `([^`]+ [^`]+)`[^|]* \|", faults, re.MULTILINE)
    assert len(bold) >= 6
    assert len(rows) >= 5
    all_strings = "\n".join(strings())
    for message in [*bold, *rows]:
        for part in re.split(
            r"…|pid \d+ \(java\)|\d+|\[1\]|\.epochmq|is (?=in use by)|BackOff: |Starting: ", message
        ):
            words = part.strip(" ,:")
            assert words in all_strings, f"{message}: {words!r}"


def strings() -> Iterator[str]:
    """The texts in the sources, without placeholders."""
    for file in tracked():
        if file.startswith(SOURCES) and file.endswith(".py"):
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
