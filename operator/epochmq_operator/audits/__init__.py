"""Audits of broker groups on Kubernetes: what is read at which cut (`cut`), the objects that an audit needs
(`manifests`), what to do next (`plan`) and what is said of it (`status`). Pure throughout; the driver is
`epochmq_operator.kube.audit_reconciler`, the program that the pods run is `epochmq_spark`."""
