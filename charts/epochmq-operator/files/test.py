"""Implements `helm test`: checks that the definitions are installed and reject invalid resources, that an
operator is active, and that it sees a new resource. The resource is a paused ControllerGroup, for which the
operator writes nothing but a status; it is deleted at the end."""

import json
import os
import sys
import time
import uuid

from kubernetes import client, config

GROUP, VERSION, PLURAL = "epochmq.io", "v1alpha1", "controllergroups"
LEADER_WAIT_S = 60
WATCH_WAIT_S = 60

config.load_incluster_config()
custom, leases = client.CustomObjectsApi(), client.CoordinationV1Api()
namespace = os.environ["NAMESPACE"]


def rejects_an_even_number():
    """Whether the API server rejects an even number of controllers, by a dry run that creates nothing."""
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ControllerGroup",
        "metadata": {"name": "epochmq-test"},
        "spec": {"replicas": 2},
    }
    try:
        custom.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, body, dry_run="All")
    except client.ApiException as error:
        return error.status == 422 and "take one fewer or one more" in json.loads(error.body)["message"]
    return False


def an_operator_leads():
    try:
        spec = leases.read_namespaced_lease(os.environ["LEASE"], os.environ["LEASE_NAMESPACE"]).spec
    except client.ApiException as error:
        if error.status != 404:
            raise
        return False
    return bool(spec.holder_identity) and time.time() - spec.renew_time.timestamp() < 60


def sees_a_new_resource():
    """Whether the operator writes the status of a resource that is new. With a watch that has ended it would
    hold the Lease and see nothing."""
    name = f"epochmq-test-{uuid.uuid4().hex[:8]}"
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ControllerGroup",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "paused": True},
    }
    custom.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, body)
    try:
        deadline = time.monotonic() + WATCH_WAIT_S
        while time.monotonic() < deadline:
            found = custom.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)
            if (found.get("status") or {}).get("observedGeneration"):
                return True
            time.sleep(1)
        return False
    finally:
        custom.delete_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)


for kind in ("brokergroups", PLURAL):
    found = custom.list_namespaced_custom_object(GROUP, VERSION, namespace, kind)["items"]
    print(f"{kind} in {namespace}: {len(found)}")
if not rejects_an_even_number():
    sys.exit("the definition of ControllerGroup accepts an even number of controllers: is it an old one?")
deadline = time.monotonic() + LEADER_WAIT_S
while not an_operator_leads():
    if time.monotonic() > deadline:
        sys.exit(f"no operator holds the Lease {os.environ['LEASE']}: see the operators' logs")
    time.sleep(1)
print("an operator is active")
if not sees_a_new_resource():
    sys.exit(
        f"an operator is active, but has not seen a new ControllerGroup in {namespace} within "
        f"{WATCH_WAIT_S} s: its watch has ended; see its log, and delete its pod"
    )
print("the operator sees new resources")
