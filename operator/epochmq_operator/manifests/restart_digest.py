"""Computes for which changes a pod has to restart.

A pod gets its template and its configuration when it starts. Keys that a running broker accepts can be
applied to it later (`plans.reloads`); the members of a quorum do not concern running controllers
(`QUORUM_KEYS`) and running replicas of a DLedger group (`DLEDGER_MEMBER_KEYS`). The digest covers everything
else: two templates with the same digest differ only in such keys, so a pod with one of them need not restart
to get the other one."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_operator.manifests.kept_templates import annotations_of, content_digest
from epochmq_operator.manifests.names import RESTART_ANNOTATION
from epochmq_operator.manifests.settings import JsonObject
from epochmq_operator.pods import Component
from epochmq_protocol import properties
from epochmq_protocol.broker_keys import DLEDGER_MEMBER_KEYS, is_fixed

QUORUM_KEYS = frozenset({"controllerDLegerPeers", "joinControllerGroup"})
"""The keys that name the members of the quorum to a controller whose log names none. A running controller
needs no other values: its log names the members, or those of its configuration are right."""
SIDECAR_SUFFIX = ".admin.conf"


def restart_digest(component: Component, template: JsonObject, files: Mapping[str, str]) -> str | None:
    """The digest for pods with this template, which names no configuration, and with these configuration
    files by name. None for a component whose pods restart for every change."""
    if component is Component.NAMESERVER:
        return None
    kept = {
        name: text
        if name.endswith(SIDECAR_SUFFIX)
        else {
            key: value
            for key, value in sorted(properties.parse(text).items())
            if _needs_restart(component, key)
        }
        for name, text in files.items()
    }
    return content_digest([template, kept])


def _needs_restart(component: Component, key: str) -> bool:
    if component is Component.BROKER:
        return is_fixed(key) and key not in DLEDGER_MEMBER_KEYS
    return key not in QUORUM_KEYS


def restart_digest_of(template: Mapping[str, Any]) -> str | None:
    """The digest of a pod, or of the pod template of a StatefulSet; None if it has none."""
    found = annotations_of(template).get(RESTART_ANNOTATION)
    return found if isinstance(found, str) else None
