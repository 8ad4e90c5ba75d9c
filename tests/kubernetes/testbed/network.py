"""Sets up the network of a cluster: a namespace with a bridge for the control plane, and a namespace on that
bridge for each node. There is no route out of them."""

from __future__ import annotations

from tests.kubernetes.testbed.layout import CONTROL_PLANE, DNS_SERVICE, DOMAIN, Layout, NodeLayout

CONTROL_PLANE_NAMESPACE = "control"
BRIDGE = "nodes"


def setup_script(layout: Layout) -> str:
    """A shell script that creates the namespaces, to be run among the cluster's mounts."""
    lines = [
        "modprobe --all --quiet br_netfilter overlay || true",  # they may be built in, or there already
        f"ip netns add {CONTROL_PLANE_NAMESPACE}",
        f"ip -n {CONTROL_PLANE_NAMESPACE} link set lo up",
        f"ip -n {CONTROL_PLANE_NAMESPACE} link add {BRIDGE} type bridge",
        f"ip -n {CONTROL_PLANE_NAMESPACE} address add {CONTROL_PLANE}/24 dev {BRIDGE}",
        f"ip -n {CONTROL_PLANE_NAMESPACE} link set {BRIDGE} up",
    ]
    for node in layout.nodes:
        lines += _node_lines(node)
    for node in layout.nodes:
        others = [CONTROL_PLANE_NAMESPACE, *(other.name for other in layout.nodes if other != node)]
        lines += [f"ip -n {other} route add {node.pods} via {node.address}" for other in others]
    return "\n".join(lines)


def _node_lines(node: NodeLayout) -> list[str]:
    return [
        f"ip netns add {node.name}",
        f"ip -n {node.name} link set lo up",
        f"ip link add eth0 netns {node.name} type veth peer name {node.name} netns {CONTROL_PLANE_NAMESPACE}",
        f"ip -n {CONTROL_PLANE_NAMESPACE} link set {node.name} master {BRIDGE} up",
        f"ip -n {node.name} address add {node.address}/24 dev eth0",
        f"ip -n {node.name} link set eth0 up",
        # Without a route, packets to the virtual addresses of Services would not be sent at all.
        f"ip -n {node.name} route add default via {CONTROL_PLANE}",
        # Responses between two pods of a node through a Service must pass kube-proxy's rules, too.
        f"nsenter --net=/run/netns/{node.name} sysctl -qw net.ipv4.ip_forward=1"
        " net.bridge.bridge-nf-call-iptables=1",
    ]


def link_script(node: NodeLayout, *, up: bool) -> str:
    """A shell script that connects or disconnects a node."""
    return f"ip -n {CONTROL_PLANE_NAMESPACE} link set {node.name} {'up' if up else 'down'}"


def resolv_conf() -> str:
    """The resolver's configuration for processes in a node's network."""
    return f"nameserver {DNS_SERVICE}\nsearch default.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n"


def cni_config(node: NodeLayout) -> dict[str, object]:
    """A bridge for the node's pods, addresses from the node's range."""
    addresses = {
        "type": "host-local",
        "dataDir": str(node.folder / "addresses"),
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {
        "cniVersion": "1.0.0",
        "name": "testbed",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }
