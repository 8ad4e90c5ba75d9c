"""The tables of the documentation say what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from epochmq_broker.requests.fast_handler import Port
from epochmq_controller.controller.processor import ControllerProcessor
from epochmq_controller.nameserver.processor import NamesrvProcessor
from epochmq_controller.port_rules import CONTROLLER_RULES, NAMESERVER_RULES, Sender
from epochmq_operator.pod_rendering import REPLICATION_DEFAULTS
from epochmq_operator.resources import audit, backup, load_resources
from epochmq_operator.resources.entities import ENTITY_KINDS
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.member_requests import (
    CONTROLLER_REQUESTS,
    NAMESERVER_REQUESTS,
    RAFT_REQUESTS,
    MemberCode,
)
from tests.unit.broker.kit import running
from tests.unit.docs.pages import ROOT, pages, read
from tools import access_matrix, diagram

DOCS = ROOT / "docs"
WITHOUT_THE_FEATURE = {354, 355, 908, 200056}
"""What a broker answers as one that lacks the feature."""
TO_CLIENTS = {39, 40, 220, 221, 326}
_REGISTERED = """
    10 11 12 14 15 17 18 21 25 26 28 29 30 31 32 33 34 35 36 37 38 41 42 43 45 46 60 61 200 201 202 203
    204 207 208 215 222 223 225 300 303 305 306 307 308 309 310 314 315 316 317 320 321 323 324 325 328
    329 343 345 351 352 353 354 355 361 370 400 401 402 513 905 906 907 908 1007 1008 2001 2002 2003
    2004 3001 3002 3003 3004 3005 3006 3007 3008 3009 3010 200050 200051 200052 200053 200054 200055
    200056 200151
"""
REGISTERED = frozenset(map(int, _REGISTERED.split()))
"""The codes that RocketMQ's broker 5.3.3 registers (registerProcessor, AdminBrokerProcessor)."""


def numbers(cell: str) -> set[int]:
    """`1, 2 (why), 5 to 7` as {1, 2, 5, 6, 7}."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", re.sub(r"\([^)]*\)", "", cell)):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_a_test_sends_every_request_that_rocketmqs_broker_serves() -> None:
    text = (DOCS / "develop" / "request-codes.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| `([\w/.]+)` \|(?: `(\w+)` \|)?", text, re.MULTILINE)
    assert [int(code) for code, *_ in rows] == sorted(REGISTERED)
    for code, name, path, sent_by in rows:
        assert name == RequestCode(int(code)).name
        assert re.search(rf"\b{sent_by or name}\b", (ROOT / path).read_text()), (name, path)


async def test_every_request_code_that_nobody_serves_is_named(tmp_path: Path) -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\d[^|]*) \|$", (DOCS / "rocketmq.md").read_text(), re.MULTILINE)
    lacking, clients, nobody = (numbers(cell) for _, cell in rows)
    async with running(tmp_path, {}) as bench:
        served = set(map(int, bench.broker.pipeline.handlers(Port.MAIN))) & set(RequestCode)
    assert (lacking, clients) == (WITHOUT_THE_FEATURE, TO_CLIENTS)
    assert lacking <= served
    assert served <= REGISTERED, "the broker serves a code that RocketMQ's does not"
    assert served | nobody >= REGISTERED
    nameserver = set(map(int, NamesrvProcessor.handlers(_anything())))
    controller = set(map(int, ControllerProcessor.handlers(_anything()))) & set(RequestCode)
    everywhere = served | nameserver | controller | clients
    assert nobody & everywhere == set()
    assert nobody | everywhere == set(RequestCode)


async def test_every_code_of_every_port_has_a_rule_and_a_row_in_the_matrix(tmp_path: Path) -> None:
    async with running(tmp_path, {}) as bench:
        served = {int(code) for port in Port for code in bench.broker.pipeline.served[port]}
    assert served == access_matrix.served_by_brokers()
    proofs = set(map(int, MemberCode))
    nameserver = set(map(int, NamesrvProcessor.handlers(_anything())))
    assert nameserver | proofs == set(map(int, NAMESERVER_RULES))
    controller = set(map(int, ControllerProcessor.handlers(_anything())))
    assert controller | proofs | RAFT_REQUESTS == set(map(int, CONTROLLER_RULES))
    for rules, guarded in ((NAMESERVER_RULES, NAMESERVER_REQUESTS), (CONTROLLER_RULES, CONTROLLER_REQUESTS)):
        assert {int(code) for code, sender in rules.items() if sender is Sender.MEMBERS} == guarded
    page = access_matrix.page(served)
    assert access_matrix.PAGE.read_text() == page, "run .venv/bin/python -m tools.access_matrix"


def _anything() -> Any:
    """Stands for a processor whose methods are only named."""
    return MagicMock()


def test_the_defaults_under_controllers_are_those_of_the_renderer() -> None:
    text = (DOCS / "formats.md").read_text()
    section = text[text.index("### Defaults under controllers") : text.index("### Keys that follow")]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE))
    assert rows == {key: str(value).lower() for key, value in REPLICATION_DEFAULTS.items()}


def test_every_finding_is_in_the_audits_table_with_its_severity() -> None:
    text = (DOCS / "audit.md").read_text()
    section = text[text.index("## Findings") : text.index("Columns of `findings.parquet`")]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    named: dict[str, str] = {}
    for row in rows:
        cell = row.split("|")[1]
        prefix = ""
        for kind, remark in re.findall(r"`([^`]+)`( \(warning\))?", cell):
            prefix = kind.partition(".")[0] if not kind.startswith(".") else prefix
            name = prefix + kind if kind.startswith(".") else kind
            heading = re.search(r"\| (warning|note)s?(: [^|]*)? \|$", row)
            named[name] = (
                "warning"
                if remark or (heading and heading[1] == "warning")
                else "note"
                if heading
                else "error"
            )
    pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")
    from epochmq_spark.findings import KINDS, FindingSeverity

    assert named == {kind: str(severity) for kind, (severity, _) in KINDS.items()}
    assert {*FindingSeverity} == {"error", "warning", "note"}


def test_every_behaviour_of_an_acting_master_has_a_test() -> None:
    """`test_links` checks that the tests exist."""
    text = (DOCS / "develop" / "acting-master.md").read_text()
    section = text[text.index("## Behaviours and their tests") :]
    rows = re.findall(r"^\| (?!behaviour \||---)([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    assert len(rows) > 70
    assert [behaviour for behaviour, tests in rows if not re.search(r"`\S+\.py(::\w+)?`", tests)] == []


def test_every_column_of_findings_is_listed() -> None:
    text = (DOCS / "audit.md").read_text()
    listed = re.search(r"Columns of `findings.parquet`: ([^.]+)\.", text)
    assert listed is not None
    pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")
    from epochmq_spark import schemas

    assert re.findall(r"`(\w+)`", listed[1]) == schemas.FINDINGS.names


def test_every_resource_in_the_pages_loads() -> None:
    found = 0
    for page in pages():
        for block in page.blocks:
            if not block.startswith("apiVersion: epochmq.io"):
                continue
            found += 1
            document = yaml.safe_load(block)
            if document["kind"] == audit.AUDIT_KIND:
                audit.BrokerGroupAudit.model_validate(document)
            elif document["kind"] == backup.BACKUP_KIND:
                backup.BrokerGroupBackup.model_validate(document)
            elif document["kind"] in ENTITY_KINDS:
                ENTITY_KINDS[document["kind"]].model_validate(document)
            else:
                assert load_resources([(page.name, block)]).groups
    assert found >= 5


def test_the_glossary_defines_each_term_once_and_in_order() -> None:
    text = (DOCS / "glossary.md").read_text()
    terms: list[str] = []
    for section in re.split(r"\n##+ ", text)[1:]:
        rows = re.findall(r"^\| (?!term \||---)([^|]+) \|", section, re.MULTILINE)
        assert rows == sorted(rows, key=str.lower), section.partition("\n")[0]
        terms += [term for row in rows for term in row.split(", ")]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


def test_the_picture_is_that_of_its_source() -> None:
    assert diagram.PICTURE.read_text(encoding="utf-8") == diagram.draw(
        diagram.SOURCE.read_text(encoding="utf-8")
    )
    assert "architecture.svg" in {file for file, _ in read(DOCS / "architecture.md").links}


def test_each_row_of_the_table_of_failures_that_promises_something_has_a_test() -> None:
    """That the tests exist is checked for every page (`test_names.py` and `test_links.py`)."""
    failures = (DOCS / "durability.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \|(?:[^|]*\|){2} ([^|]*) \|", failures, re.MULTILINE))
    tests_of_rows = (DOCS / "develop" / "failure-tests.md").read_text()
    shown = dict(re.findall(r"^\| (\d+) \|(.*)\|$", tests_of_rows, re.MULTILINE))
    assert [int(row) for row in rows] == list(range(1, len(rows) + 1))
    assert list(shown) == list(rows)
    without = [row for row, tests in shown.items() if "::test_" not in tests]
    assert [row for row in without if not rows[row].startswith("none")] == []


def test_each_attack_has_a_test_or_is_open() -> None:
    """`test_links` checks that the tests exist."""
    text = (DOCS / "develop" / "attacks.md").read_text()
    rows = re.findall(r"^\| (?!attack \||---)([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) > 60
    without = [attack for attack, tests in rows if not re.search(r"`tests/\S+\.py(::test_\w+)?`", tests)]
    assert without == [attack for attack, tests in rows if tests.startswith("open")]
    assert len(without) <= 6, "an attack that was closed is open again"


def test_each_step_of_a_migration_has_a_test() -> None:
    """`test_links` checks that the tests exist."""
    text = (DOCS / "develop" / "migration-tests.md").read_text()
    rows = re.findall(r"^\| (?!step \||---)([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) > 10
    assert [step for step, tests in rows if not re.search(r"`tests/\S+\.py(::test_\w+)?`", tests)] == []


def test_each_alert_is_in_the_page_about_monitoring_with_its_severity() -> None:
    groups = yaml.safe_load((ROOT / "charts/epochmq-operator/files/alerts.yaml").read_text())["groups"]
    rules = {one["alert"]: one["labels"]["severity"] for group in groups for one in group["rules"]}
    rows = re.findall(
        r"^\| (critical|warning) \| ([^|]+) \|$", (DOCS / "monitoring.md").read_text(), re.MULTILINE
    )
    assert {name: severity for severity, names in rows for name in names.split(", ")} == rules
