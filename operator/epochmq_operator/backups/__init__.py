"""Backups of broker groups on Kubernetes: the pod of a run (`backup_pod`), what it leaves (`outcomes`), the
next step (`backup_steps`) and the status (`backup_status`). Pure throughout. The driver is
`epochmq_operator.kube.backup_reconciler`; the program in the pod is `epochmq_store.backups.pod_program`."""
