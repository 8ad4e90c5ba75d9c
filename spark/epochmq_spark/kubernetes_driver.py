"""`python -m epochmq_spark.kubernetes_driver --job FILE`: runs an audit as the driver pod on a Kubernetes
cluster.

The job is JSON: `group`; `replicas`, a list of `{"name", "end", "epochs"}` (the cut); `view` (of the
controllers, or null); `spark` (configuration); `report` (an existing ConfigMap of the pod's namespace, to
which the report is written). The environment variable `POD_IP` is the pod's address; `READERS`, a JSON
object, is the host:port of the volume reader of each replica.

The exit code is 0 whatever the verdict. The verdict is in the termination message, a JSON object with
`verdict`, `counts` (findings by kind), `severities`, `coverage` (numbers only), `findings` (the first ones,
as sentences), `seconds`, `report` (whether it was stored). With another exit code there is no verdict; then
the message is `{"error"}`."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import ssl
import sys
import time
import traceback
import urllib.request
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from epochmq_spark import audit, results, session, store_layout, volume_client
from epochmq_spark.files_at_cut import VolumeCut
from epochmq_spark.findings import KINDS, sentence

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MESSAGE = Path("/dev/termination-log")
MESSAGE_BYTES_MAX = 4000  # the kubelet keeps 4096
SENTENCE_LENGTH_MAX = 300
REPORT_BYTES_MAX = 900 * 1024  # an object may have about 1.5 MiB, with its data in base64
SUMMARY_FINDINGS_MAX = 100
API_TIMEOUT_S = 30


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, or 1 if there is no verdict."""
    parser = argparse.ArgumentParser(prog="epochmq_spark.kubernetes_driver")
    parser.add_argument("--job", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    try:
        job = json.loads(chosen.job.read_text(encoding="utf-8"))
        message = _run(job)
    except Exception as error:
        traceback.print_exc()
        _write_termination_message({"error": f"{type(error).__name__}: {error}"[:1000]})
        return 1
    _write_termination_message(message)
    return 0


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    started = time.time()
    replicas = freeze_volumes(job["group"], job["replicas"], json.loads(os.environ["READERS"]))
    _progress("starting Spark")
    spark = session.cluster_session(job["spark"], os.environ["POD_IP"])
    try:
        result = audit.run(spark, replicas, metadata=job.get("view"), progress=_progress)
        summary, listed = results.summarise(result, started)
    finally:
        spark.stop()
    from epochmq_spark.report import page

    stored = _store_report(job["report"], summary, page.render(summary))
    return termination_message(summary, listed, stored=stored)


def freeze_volumes(
    group: str, documents: Sequence[Mapping[str, Any]], readers: Mapping[str, str]
) -> list[store_layout.AuditedReplica]:
    """The replicas, with each volume frozen at its cut. A volume without a reader gets a location that does
    not exist, so that the audit reports it. Raises OSError or ValueError."""
    replicas = []
    for one in documents:
        name = str(one["name"])
        reader = readers.get(name, "")
        location = f"http://{reader}" if reader else f"/volume-without-a-reader/{name}"
        if reader:
            _progress(f"freezing the volume of {name} at the cut")
            volume_client.freeze(location, VolumeCut.of({"end": one["end"], "epochs": one.get("epochs")}))
        replicas.append(store_layout.AuditedReplica(group, name, location))
    return replicas


def termination_message(
    summary: Mapping[str, Any], listed: Sequence[dict[str, Any]], *, stored: bool
) -> dict[str, Any]:
    """The pod's termination message, with as many findings as fit."""
    severities: Counter[str] = Counter()
    for kind, count in summary["findingCounts"].items():
        severities[KINDS[kind][0].value] += count
    message: dict[str, Any] = {
        "verdict": summary["verdict"],
        "counts": summary["findingCounts"],
        "severities": dict(severities),
        "seconds": summary["seconds"],
        "report": stored,
        "coverage": {key: value for key, value in summary.get("coverage", {}).items() if key != "leftOut"},
        "findings": [],
    }
    for row in listed:
        line = sentence(row)[:SENTENCE_LENGTH_MAX]
        if len(json.dumps({**message, "findings": [*message["findings"], line]})) > MESSAGE_BYTES_MAX:
            break
        message["findings"].append(line)
    return message


def report_data(summary: Mapping[str, Any], html: str) -> dict[str, dict[str, str]]:
    """`data` and `binaryData` of the report's ConfigMap: the summary, and the page if it fits."""
    listed = {**summary, "findings": list(summary["findings"])[:SUMMARY_FINDINGS_MAX]}
    data = {"data": {results.SUMMARY_FILE: json.dumps(listed, indent=1)}}
    packed = gzip.compress(html.encode(), mtime=0)
    if len(packed) + len(data["data"][results.SUMMARY_FILE]) <= REPORT_BYTES_MAX:
        data["binaryData"] = {f"{results.REPORT_FILE}.gz": b64encode(packed).decode()}
    return data


def _store_report(name: str, summary: Mapping[str, Any], html: str) -> bool:
    """Stores the report; False if that failed. The verdict does not depend on it."""
    try:
        namespace = (ACCOUNT / "namespace").read_text().strip()
        token = (ACCOUNT / "token").read_text().strip()
        request = urllib.request.Request(
            f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/configmaps/{name}",
            data=json.dumps(report_data(summary, html)).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
            method="PATCH",
        )
        context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        with urllib.request.urlopen(request, timeout=API_TIMEOUT_S, context=context):
            return True
    except OSError as error:
        _progress(f"could not store the report in ConfigMap {name}: {error}")
        return False


def _write_termination_message(message: Mapping[str, Any]) -> None:
    text = json.dumps(message)
    print(text, flush=True)
    try:
        MESSAGE.write_text(text)
    except OSError as error:
        _progress(f"could not write the termination message: {error}")


def _progress(text: str) -> None:
    print(f"audit: {text} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
