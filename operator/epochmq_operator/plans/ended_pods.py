"""Reads why the pod of a program ended that leaves a termination message, and whose pod it is."""

# pure: data in, data out.

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from epochmq_operator.plans.objects import Manifest, metadata
from epochmq_operator.plans.observed_state import ObservedState


def termination_of(pod: Manifest) -> Mapping[str, Any]:
    """The termination message of a pod's container, a JSON object; empty without one."""
    return _json_object(_terminated(pod).get("message"))


def number_in(termination: Mapping[str, Any], key: str) -> int:
    """A number of a termination message; 0 without one."""
    value = termination.get(key)
    return value if type(value) is int else 0


def why_it_ended(pod: Manifest) -> str:
    """Why a pod ended, by its own termination message if it left one."""
    status, ended = pod.get("status") or {}, _terminated(pod)
    why = termination_of(pod).get("error") or status.get("message") or ended.get("message")
    if why:
        return str(why)
    code, signal = ended.get("exitCode"), ended.get("reason")
    if code is None:
        return str(status.get("reason") or "the pod ended")
    return f"exit status {code}" + (f" ({signal})" if signal else "")


def _terminated(pod: Manifest) -> Mapping[str, Any]:
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        if found := (one.get("state") or {}).get("terminated"):
            return dict(found)
    return {}


def _json_object(text: object) -> Mapping[str, Any]:
    try:
        found = json.loads(str(text))
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def is_owned(observed: ObservedState, found: Manifest | None) -> bool:
    """Whether the object exists, is not being deleted, and is owned by the observed resource."""
    if found is None or metadata(found).get("deletionTimestamp") is not None:
        return False
    owners = metadata(found).get("ownerReferences") or ()
    return any(one.get("uid") == metadata(observed.resource).get("uid") for one in owners)
