"""Runs the operator on a Kubernetes cluster: observes the cluster, passes the observed state to plans, and
carries out their effects."""
