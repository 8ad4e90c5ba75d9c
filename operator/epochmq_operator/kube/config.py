"""Reads the operator's configuration file: YAML, or lines of KEY=VALUE with commas in lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from epochmq_operator.audits.manifests import AuditSettings
from epochmq_operator.backups.backup_pod import BackupSettings
from epochmq_operator.manifests import ManifestSettings
from epochmq_operator.manifests.settings import USER_ID
from epochmq_operator.plans.update_limit import PARALLEL_UPDATES
from epochmq_operator.resources import KINDS
from epochmq_operator.resources.audit import AUDIT_KIND
from epochmq_operator.resources.backup import BACKUP_KIND
from epochmq_operator.resources.entities import TOPIC_KIND, USER_KIND
from epochmq_protocol.errors import ConfigError

PROPERTY = re.compile(r"\s*[a-zA-Z]+\s*=")


class OperatorConfig(BaseModel):
    """The operator's settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    namespaces: Annotated[
        list[str], Field(description="Namespaces whose groups the operator manages. Default: all.")
    ] = []
    image: Annotated[
        str | None, Field(description="Image of groups that name none, for brokers and controllers.")
    ] = None
    broker_image: Annotated[str | None, Field(description="The same for brokers only.")] = None
    controller_image: Annotated[str | None, Field(description="The same for controllers only.")] = None
    audit_image: Annotated[
        str | None,
        Field(
            description="Image of audits, backups and restores that name none. Without it each must name one."
        ),
    ] = None
    image_pull_secrets: Annotated[list[str], Field(description="Secrets for pulling images.")] = []
    network_policies: Annotated[bool, Field(description="Whether groups get NetworkPolicies.")] = True
    monitoring_namespaces: Annotated[
        list[str], Field(description="Namespaces whose pods may read the sidecars' metrics.")
    ] = []
    operator_namespace: Annotated[
        str | None, Field(description="Namespace of the operator. Default: its pod's.")
    ] = None
    operator_labels: Annotated[
        dict[str, str], Field(description="Labels of the operator's pods, for NetworkPolicies.")
    ] = {"app.kubernetes.io/name": "epochmq-operator"}
    lease_name: Annotated[
        str,
        Field(description="Name of the Lease, in the operator's namespace, that the active operator holds."),
    ] = "epochmq-operator"
    identity: Annotated[
        str | None, Field(description="Name of the operator in the Lease. Default: its host name.")
    ] = None
    metrics_address: Annotated[str, Field(description="Address for metrics and probes.")] = "0.0.0.0"
    metrics_port: Annotated[
        int, Field(ge=0, le=65535, description="Port for metrics and probes; 0: any.")
    ] = 8080
    pod_user: Annotated[
        Annotated[int, Field(ge=1)] | Literal["assigned"],
        Field(description="User and group of pods; `assigned`: the cluster assigns them."),
    ] = USER_ID
    audits: Annotated[bool, Field(description="Whether BrokerGroupAudits are served.")] = True
    backups: Annotated[bool, Field(description="Whether BrokerGroupBackups are served.")] = True
    restores: Annotated[
        bool, Field(description="Whether new groups are restored from a backup (spec.restoreFrom).")
    ] = True
    topics: Annotated[bool, Field(description="Whether Topics are served.")] = True
    users: Annotated[bool, Field(description="Whether Users are served.")] = True
    workers: Annotated[
        int, Field(ge=1, le=100, description="Number of groups that are reconciled at a time.")
    ] = 16
    parallel_updates: Annotated[
        int, Field(ge=1, le=1000, description="Number of groups of a kind that are updated at a time.")
    ] = PARALLEL_UPDATES
    sidecars: Annotated[
        Literal["direct", "proxy"],
        Field(
            description="Connect to the admin sidecars at their pods' addresses, or through the API server."
        ),
    ] = "direct"
    kubeconfig: Annotated[
        str | None, Field(description="kubeconfig file, for an operator outside the cluster.")
    ] = None
    context: Annotated[str | None, Field(description="Context of the kubeconfig.")] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="Lowest level of log lines.")
    ] = "info"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of resources that the operator serves, groups first."""
        optional = {
            AUDIT_KIND: self.audits,
            BACKUP_KIND: self.backups,
            TOPIC_KIND: self.topics,
            USER_KIND: self.users,
        }
        return (*KINDS, *(kind for kind, served in optional.items() if served))

    def audit_settings(self) -> AuditSettings:
        """The settings for audits."""
        return AuditSettings(
            self.audit_image, tuple(self.image_pull_secrets), self.network_policies, self._pod_user
        )

    def backup_settings(self) -> BackupSettings:
        """The settings for backups."""
        return BackupSettings(self.audit_image, tuple(self.image_pull_secrets), self._pod_user)

    @property
    def _pod_user(self) -> int | None:
        return None if self.pod_user == "assigned" else self.pod_user

    def settings(self, own_namespace: str) -> ManifestSettings:
        """The settings for groups. ConfigError without images."""
        broker, controller = (one or self.image for one in (self.broker_image, self.controller_image))
        if broker is None or controller is None:
            raise ConfigError("image", None, "an image for the pods of groups that name none")
        return ManifestSettings(
            broker_image=broker,
            controller_image=controller,
            operator_namespace=self.operator_namespace or own_namespace,
            operator_labels=tuple(sorted(self.operator_labels.items())),
            monitoring_namespaces=tuple(self.monitoring_namespaces),
            network_policies=self.network_policies,
            image_pull_secrets=tuple(self.image_pull_secrets),
            pod_user=self._pod_user,
            audit_image=self.audit_image,
            restores=self.restores,
        )


def load_config(path: str | None, overrides: dict[str, str] | None = None) -> OperatorConfig:
    """Loads a file; `overrides` replace single keys. ConfigError for invalid content."""
    found: dict[str, Any] = {}
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError("--config", path, f"a file that can be read: {error.strerror}") from None
        found = _parsed(path, text)
    for key, value in (overrides or {}).items():
        found[key] = _value(key, value)
    try:
        return OperatorConfig.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = sorted(info.alias or name for name, info in OperatorConfig.model_fields.items())
            raise ConfigError(key, first["input"], f"one of the keys {', '.join(known)}") from None
        raise ConfigError(key, first["input"], first["msg"].lower()) from None


def _parsed(path: str, text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and all(PROPERTY.match(line) for line in lines):
        pairs = (line.partition("=") for line in lines)
        return {key.strip(): _value(key.strip(), value.strip()) for key, _, value in pairs}
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("--config", path, f"YAML, or lines of KEY=VALUE: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError("--config", path, "a mapping of keys to values")
    return found


def _value(key: str, text: str) -> Any:
    """Converts text to the type of the key."""
    for name, info in OperatorConfig.model_fields.items():
        if (info.alias or name) != key:
            continue
        default = info.get_default(call_default_factory=True)
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if isinstance(default, list):
            return parts
        if isinstance(default, dict):
            return {key: value for key, _, value in (part.partition("=") for part in parts)}
    return text
