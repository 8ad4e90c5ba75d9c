"""Reconciles the entities of brokers, which are topics and users, with their resources (`Topic`, `User`).
Pure: `kube.entity_reconciler` asks the brokers and carries out the changes."""
