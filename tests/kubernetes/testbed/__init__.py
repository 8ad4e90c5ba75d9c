"""A real Kubernetes on this machine, for tests: the API server, scheduler and kubelets of a release, built
from its Go modules, every node a network namespace. `docs/develop/kubernetes-testbed.md` says how it works
and how to use it."""
