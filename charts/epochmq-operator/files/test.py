"""Implements `helm test`: checks that the definitions are installed and reject invalid resources, and that an
operator is active."""

import json
import os
import sys
import time

from kubernetes import client, config

GROUP, VERSION, PLURAL = "epochmq.io", "v1alpha1", "controllergroups"
LEADER_WAIT_S = 60

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
