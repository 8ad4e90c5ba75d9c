"""Lists the objects that every cluster has from its start: the DNS Service and the storage class."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.testbed.layout import CONTROL_PLANE, DNS_SERVICE
from tests.kubernetes.testbed.volumes import STORAGE_CLASS_OBJECT

_DNS_PORTS = (("dns", "UDP"), ("dns-tcp", "TCP"))


def addons() -> list[dict[str, Any]]:
    """The objects. CoreDNS runs beside the API server, so its Service gets its endpoint by hand."""
    name = {"name": "kube-dns", "namespace": "kube-system"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": name,
            "spec": {
                "clusterIP": DNS_SERVICE,
                "ports": [{"name": port, "port": 53, "protocol": protocol} for port, protocol in _DNS_PORTS],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**name, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "ports": [{"name": port, "port": 53, "protocol": protocol} for port, protocol in _DNS_PORTS],
            "endpoints": [{"addresses": [CONTROL_PLANE], "conditions": {"ready": True}}],
        },
        STORAGE_CLASS_OBJECT,
    ]
