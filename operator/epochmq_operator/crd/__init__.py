"""Generates the CustomResourceDefinitions and the reference from the resource models.

python -m epochmq_operator.crd            # writes them to their places in the repository python -m
epochmq_operator.crd --check    # lists those that are out of date"""

from epochmq_operator.crd.audit import audit_definition, audit_reference
from epochmq_operator.crd.definition import definition
from epochmq_operator.crd.reference import reference
from epochmq_operator.crd.text import to_yaml

__all__ = ["audit_definition", "audit_reference", "definition", "reference", "to_yaml"]
