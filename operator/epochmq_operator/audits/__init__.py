"""Audits of broker groups on Kubernetes: the cut of the logs that are compared (`cut`), the objects that an
audit needs (`manifests`), the next step (`plan`), its runs (`runs`) and its status (`audit_status`). Pure
throughout. The driver is `epochmq_operator.kube.audit_reconciler`; the program in the pods is
`epochmq_spark`."""
