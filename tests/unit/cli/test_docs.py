"""The documents say what the code does, where both can be compared."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from epochmq.app import app
from epochmq.exits import ExitCode
from epochmq_operator.pod_rendering import (
    BROKER_HA_PORT,
    BROKER_PORT,
    BROKER_VIP_PORT,
    CONTROLLER_PORT,
    NAMESERVER_PORT,
)
from epochmq_operator.resources import (
    CONTROLLER_OWNED_KEYS,
    OPERATOR_OWNED_KEYS,
    BrokerGroup,
    BrokerGroupSpec,
    ControllerGroupSpec,
    ObjectMetadata,
    load_resources,
)
from epochmq_operator.status_model import (
    BrokerGroupStatus,
    ControllerGroupStatus,
    ControllerStatus,
    GroupPhase,
    ListedReplica,
    ListedReplicaGroup,
    PodPhase,
    ReplicaStatus,
    StatusReport,
)

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
RESOURCES = (ROOT / "docs" / "resources.md").read_text()
FORMATS = (ROOT / "docs" / "formats.md").read_text()


def test_the_two_commands_stand_at_the_top_of_the_readme() -> None:
    commands = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    ")]
    assert commands[:2] == ["make run", "make test"]


def test_the_readme_names_every_verb() -> None:
    verbs = [
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    ]
    assert [verb for verb in verbs if f"`epochmq {verb}" not in README] == []


def test_every_exit_code_is_explained() -> None:
    pytest.importorskip("pyarrow", reason="missing: what the audit needs (make install-spark)")
    from epochmq_spark.verdict import AuditVerdict

    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", OPERATIONS, re.MULTILINE)}
    assert explained == {*ExitCode, *(verdict.exit_code for verdict in AuditVerdict)}


def test_every_phase_and_port_is_explained() -> None:
    assert [phase for phase in (*PodPhase, *GroupPhase) if f"`{phase}`" not in OPERATIONS] == []
    ports = (NAMESERVER_PORT, CONTROLLER_PORT, BROKER_PORT, BROKER_VIP_PORT, BROKER_HA_PORT)
    assert [port for port in ports if f"| {port} |" not in OPERATIONS] == []


def test_every_key_that_the_operator_owns_is_listed() -> None:
    assert [key for key in (*OPERATOR_OWNED_KEYS, *CONTROLLER_OWNED_KEYS) if f"`{key}`" not in FORMATS] == []


def test_every_field_of_the_resource_is_described() -> None:
    fields = [f"metadata.{name}" for name in ObjectMetadata.model_fields]
    fields += [f"spec.{info.alias or name}" for name, info in BrokerGroupSpec.model_fields.items()]
    fields += [f"spec.{info.alias or name}" for name, info in ControllerGroupSpec.model_fields.items()]
    fields.append("spec.nameserver.embedded")
    assert set(BrokerGroup.model_fields) == {"api_version", "kind", "metadata", "spec", "status"}
    assert [field for field in fields if f"`{field}`" not in FORMATS + RESOURCES] == []


STATUSES = [StatusReport, BrokerGroupStatus, ReplicaStatus, ControllerStatus, ControllerGroupStatus]


@pytest.mark.parametrize("kind", [*STATUSES, ListedReplicaGroup, ListedReplica])
def test_every_field_of_the_status_is_shown(kind: type[msgspec.Struct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    assert [name for name in names if f'"{name}":' not in FORMATS] == []


def test_the_resources_in_the_documents_load() -> None:
    for name in ("README.md", "docs/formats.md"):
        for text in re.findall(r"```yaml\n(.*?)```", (ROOT / name).read_text(), re.DOTALL):
            assert load_resources([(name, text)]).groups


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
