"""Runs commands in the pods of replicas to control them: promote, fence, drain. A command calls the replica
over its local socket. Whoever may run commands in a pod needs no token."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from kubernetes import client
from kubernetes.client import ApiException
from kubernetes.stream import stream

from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.named_replica import ReplicaControlError
from epochmq_operator.pods import Component

_stream: Any = stream  # it carries no types
ERROR_CHANNEL = 3


async def call_replica(
    connection: ClusterConnection, namespace: str, pod: str, operation: str, timeout_s: float
) -> dict[str, Any]:
    """Runs an operation of the replica's local socket in its pod; returns the result. ReplicaControlError if
    the replica rejects the operation or cannot be reached."""
    command = ["epochmq", "admin-call", "--timeout", f"{timeout_s:g}", operation]
    async with asyncio.timeout(timeout_s + 10):
        return await asyncio.to_thread(_run, connection, namespace, pod, command, timeout_s + 5)


def _run(
    connection: ClusterConnection, namespace: str, pod: str, command: list[str], timeout_s: float
) -> dict[str, Any]:
    core = client.CoreV1Api(client.ApiClient(connection.configuration))
    try:
        channel = _stream(
            core.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container=str(Component.BROKER),
            command=command,
            stdout=True,
            stderr=True,
            _preload_content=False,
        )
        channel.run_forever(timeout=timeout_s)
        output, errors = channel.read_stdout(timeout=1) or "", channel.read_stderr(timeout=1) or ""
        code = channel.returncode
        channel.close()
    except (ApiException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ReplicaControlError(f"cannot run a command in {pod}: {reason}") from None
    if code != 0:
        raise ReplicaControlError(
            f"{pod} rejected {command[-1]}: {errors.strip() or output.strip() or f'exit status {code}'}"
        )
    try:
        answer = json.loads(output)
    except ValueError:
        answer = {}
    return answer if isinstance(answer, dict) else {}
