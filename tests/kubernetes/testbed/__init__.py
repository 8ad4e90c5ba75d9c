"""A real Kubernetes on this machine, for tests: the API server, scheduler and kubelets of a release, built
from its Go modules, every node a network namespace. `docs/kubernetes-testbed.md` tells how it is made and
used."""
