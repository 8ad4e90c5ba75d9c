"""A cluster to play with, which stays until it is removed:

    … -m tests.kubernetes.testbed up [NODES]       starts one (`make kube`), or says how to reach it
    … -m tests.kubernetes.testbed down             removes it (`make kube-down`)
    … -m tests.kubernetes.testbed images TARGET…   builds images from the sources as they are, loads them
    … -m tests.kubernetes.testbed build            builds what the tests need, if this machine can
    … -m tests.kubernetes.testbed list             the clusters of this machine

EPOCHMQ_CLUSTER names another one than the checkout's own."""

from __future__ import annotations

import os
import shlex
import sys

from tests.kubernetes.testbed.cache import ROOT, digest_of, say
from tests.kubernetes.testbed.cleanup import CLUSTERS, remove_dead, runs
from tests.kubernetes.testbed.clients import clients_image
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.images import image_name, pause_image, project_images
from tests.kubernetes.testbed.prerequisites import MissingPrerequisiteError, ensure_machine
from tests.kubernetes.testbed.processes import TestbedError
from tests.kubernetes.testbed.programs import programs

NODES_MAX = 5
TARGETS = ("broker", "controller", "operator")

REACH = """\
cluster {name}: {nodes} nodes; images {images} (pull policy Never)

  export KUBECONFIG={kubeconfig} PATH={programs}:$PATH
  export EPOCHMQ_CLUSTER={name}
  kubectl get nodes         # kubectl, helm and clients of any kind work on this machine as they are
  {python} -m pytest tests/kubernetes                     # tests on this cluster
  {python} -m tests.kubernetes.testbed images broker      # builds and loads it after a change of the sources
  {python} -m tests.kubernetes.testbed down               # removes the cluster

What is put after this runs where pods and Services have their addresses and names:
  {enter}
"""


def own_name() -> str:
    """The name of this checkout's cluster for manual use."""
    return os.environ.get("EPOCHMQ_CLUSTER") or f"play-{digest_of(str(ROOT))[:4]}"


def _reach(cluster: Cluster) -> str:
    return REACH.format(
        name=cluster.name,
        nodes=len(cluster.nodes),
        images=", ".join(map(image_name, TARGETS)),
        kubeconfig=cluster.kubeconfig,
        programs=cluster.programs,
        enter=shlex.join(cluster.nodes[0].enter),
        python=os.path.relpath(sys.executable, ROOT)
        if sys.executable.startswith(str(ROOT))
        else sys.executable,
    )


def _up(nodes: int) -> None:
    if not 1 <= nodes <= NODES_MAX:
        raise TestbedError(f"nodes: {nodes}, expected 1 to {NODES_MAX}")
    name = own_name()
    if runs(CLUSTERS / name):
        cluster = Cluster.attach(name)
    else:
        cluster = Cluster.start(name, nodes=nodes, targets=TARGETS, leashed=False)
    print(_reach(cluster))


def _build() -> None:
    try:
        ensure_machine()
        pause_image(programs())
        project_images()
        clients_image()
    except MissingPrerequisiteError as missing:
        print(f"testbed: {missing}; the tests on a cluster will skip")


def _list() -> None:
    for folder in sorted(CLUSTERS.glob("*")):
        print(f"{folder.name}: {'runs' if runs(folder) else 'left by one that was killed'}")


def main(arguments: list[str]) -> int:
    """Runs a command; returns the exit code."""
    try:
        match arguments:
            case ["up"]:
                _up(2)
            case ["up", nodes] if nodes.isdigit():
                _up(int(nodes))
            case ["down"]:
                remove_dead()
                Cluster.attach(own_name()).stop()
                say(f"cluster {own_name()} is gone")
            case ["images", *targets] if targets:
                print(Cluster.attach(own_name()).load_project_images(targets))
            case ["build"]:
                _build()
            case ["list"]:
                _list()
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (TestbedError, MissingPrerequisiteError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
