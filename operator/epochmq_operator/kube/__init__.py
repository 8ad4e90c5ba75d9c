"""The operator on a Kubernetes cluster: what it hears goes into plans, what they ask for is done."""
