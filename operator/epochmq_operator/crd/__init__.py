"""What is made of the resource model: the definitions that Kubernetes is given, and the reference.

python -m epochmq_operator.crd            # writes them where they belong in the repository
python -m epochmq_operator.crd --check    # says which of them are not what it would write
"""

from epochmq_operator.crd.audit import audit_definition, audit_reference
from epochmq_operator.crd.definition import definition
from epochmq_operator.crd.reference import reference
from epochmq_operator.crd.text import to_yaml

__all__ = ["audit_definition", "audit_reference", "definition", "reference", "to_yaml"]
