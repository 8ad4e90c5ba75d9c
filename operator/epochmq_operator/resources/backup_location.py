"""Defines where backups are and how a pod gets to them: what a `BrokerGroupBackup` and `spec.restoreFrom` of
a `BrokerGroup` have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from epochmq_operator.resources.documents import DocumentModel
from epochmq_operator.resources.pod_values import IMAGE, DnsName

CLAIM_DIRECTORY = "/backups"
"""Where a pod mounts the claim of `claimName`."""
CLAIM_URL = f"file://{CLAIM_DIRECTORY}"
URL = r"^(s3|gs|abfs|file)://[^\s]+$"
URL_LENGTH_MAX = 1000
MEMORY = r"^[1-9][0-9]{0,5}(Mi|Gi)$"
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 60, 7 * 24 * 3600


class BackupLocation(DocumentModel):
    """Where backups are, and how a pod gets to them."""

    url: Annotated[
        str,
        Field(
            max_length=URL_LENGTH_MAX,
            pattern=URL,
            description="Where the backups are, as on the command line. Each group needs a URL of its own. "
            "Credentials belong into a Secret, not into the URL.",
        ),
    ]
    credentials_secret: Annotated[
        DnsName | None,
        Field(
            max_length=253,
            description="Secret of the namespace whose keys become environment variables of the pod, such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. The operator does not read it.",
        ),
    ] = None
    claim_name: Annotated[
        DnsName | None,
        Field(
            max_length=253,
            description=f"PersistentVolumeClaim for backups on a volume, such as NFS. It is mounted at "
            f"{CLAIM_DIRECTORY}, so the URL begins with {CLAIM_URL}/.",
        ),
    ] = None
    service_account_name: Annotated[
        DnsName | None,
        Field(
            max_length=253,
            description="ServiceAccount of the pod, for clouds that give it the rights for the storage. The "
            "pod gets no token for the API server.",
        ),
    ] = None
    timeout_seconds: Annotated[
        int, Field(ge=TIMEOUT_S_MIN, le=TIMEOUT_S_MAX, description="Time limit of the pod.")
    ] = 21600
    memory: Annotated[
        str,
        Field(
            max_length=10,
            pattern=MEMORY,
            description="Memory limit of the pod. It includes the page cache of the files that it uses.",
        ),
    ] = "1Gi"
    image: Annotated[
        str | None,
        Field(
            description="Image of the pod, with EpochMQ and Arrow. Default: the operator's auditImage.",
            max_length=500,
            pattern=IMAGE,
        ),
    ] = None


LOCATION_RULES: tuple[tuple[str, str], ...] = (
    (
        f"has(self.claimName) == self.url.startsWith('{CLAIM_URL}/')",
        f"a url that begins with {CLAIM_URL}/ and claimName belong together: give both, or another url",
    ),
    (
        f"!self.url.startsWith('file:') || self.url.startsWith('{CLAIM_URL}/')",
        f"give a url that begins with {CLAIM_URL}/, where the volume of claimName is mounted",
    ),
    (
        r"!self.url.matches('^[a-z0-9]+://[^/?]*@')",
        "remove the credentials from url, put them into a Secret, and name it in credentialsSecret: everyone "
        "who may read the resource reads its url",
    ),
)
"""Rules of the API server that span fields: CEL at the object with these fields, and the message."""

EXPECTED_OF_LOCATIONS: Mapping[str, str] = {
    "url": "s3://BUCKET/PREFIX?OPTIONS, gs://…, abfs://… or file:///backups/…",
    "credentialsSecret": "the name of a Secret",
    "claimName": "the name of a PersistentVolumeClaim",
    "serviceAccountName": "the name of a ServiceAccount",
    "timeoutSeconds": f"a whole number from {TIMEOUT_S_MIN} to {TIMEOUT_S_MAX}",
    "memory": "a size, such as 512Mi",
    "image": "the name of an image",
}
"""What each field accepts, in words."""
