"""`python -m epochmq_spark.kubernetes_driver --job FILE`: the audit as the driver pod of a cluster.

The job, JSON: `group`; `replicas`, a list of `{"name", "end", "epochs"}` (the cut); `view` (the
controllers', or null); `spark` (settings); `report` (a ConfigMap of the pod's namespace that takes the
report, and is there already). The pod's address is in `POD_IP`; in `READERS`, a JSON object, host:port of
the reader that shows a replica's volume.

It ends with 0 whatever the verdict: that is in its termination message, a JSON object with `verdict`,
`counts` (findings by kind), `severities`, `findings` (the first, as sentences), `seconds`, `report` (whether
it was stored). What ends with another code has no verdict; its message is `{"error"}`."""

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

from epochmq_spark import audit, local_audit, session, store_layout, volume_client
from epochmq_spark.cut import VolumeCut
from epochmq_spark.findings import KINDS, sentence

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MESSAGE = Path("/dev/termination-log")
MESSAGE_BYTES_MAX = 4000  # the kubelet keeps 4096
SENTENCE_LENGTH_MAX = 300
REPORT_BYTES_MAX = 900 * 1024  # an object may have some 1.5 MiB, in base64
SUMMARY_FINDINGS_MAX = 100
API_TIMEOUT_S = 30


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 without a verdict."""
    parser = argparse.ArgumentParser(prog="epochmq_spark.kubernetes_driver")
    parser.add_argument("--job", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    try:
        job = json.loads(chosen.job.read_text(encoding="utf-8"))
        said = _run(job)
    except Exception as error:
        traceback.print_exc()
        _write_termination_message({"error": f"{type(error).__name__}: {error}"[:1000]})
        return 1
    _write_termination_message(said)
    return 0


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    started = time.time()
    replicas = held(job["group"], job["replicas"], json.loads(os.environ["READERS"]))
    _progress("starting Spark")
    spark = session.cluster_session(job["spark"], os.environ["POD_IP"])
    try:
        result = audit.run(spark, replicas, metadata=job.get("view"), progress=_progress)
        summary, shown = local_audit.summarise(result, started)
    finally:
        spark.stop()
    from epochmq_spark.report import page

    stored = _store(job["report"], summary, page.render(summary))
    return message(summary, shown, stored=stored)


def held(
    group: str, documents: Sequence[Mapping[str, Any]], readers: Mapping[str, str]
) -> list[store_layout.AuditedReplica]:
    """The replicas, each volume held at its cut. A volume that nobody shows is a place that is not there.
    Raises OSError or ValueError."""
    found = []
    for one in documents:
        name = str(one["name"])
        reader = readers.get(name, "")
        place = f"http://{reader}" if reader else f"/volume-without-a-reader/{name}"
        if reader:
            _progress(f"holding the volume of {name}")
            volume_client.hold(place, VolumeCut.of({"end": one["end"], "epochs": one.get("epochs")}))
        found.append(store_layout.AuditedReplica(group, name, place))
    return found


def message(summary: Mapping[str, Any], shown: Sequence[dict[str, Any]], *, stored: bool) -> dict[str, Any]:
    """What is said at the end, within its bounds."""
    severities: Counter[str] = Counter()
    for kind, count in summary["findingCounts"].items():
        severities[KINDS[kind][0].value] += count
    said: dict[str, Any] = {
        "verdict": summary["verdict"],
        "counts": summary["findingCounts"],
        "severities": dict(severities),
        "seconds": summary["seconds"],
        "report": stored,
        "findings": [],
    }
    for row in shown:
        line = sentence(row)[:SENTENCE_LENGTH_MAX]
        if len(json.dumps({**said, "findings": [*said["findings"], line]})) > MESSAGE_BYTES_MAX:
            break
        said["findings"].append(line)
    return said


def report_data(summary: Mapping[str, Any], html: str) -> dict[str, dict[str, str]]:
    """`data` and `binaryData` of a report's ConfigMap: the summary, and the page where it fits."""
    shown = {**summary, "findings": list(summary["findings"])[:SUMMARY_FINDINGS_MAX]}
    made = {"data": {local_audit.SUMMARY: json.dumps(shown, indent=1)}}
    packed = gzip.compress(html.encode(), mtime=0)
    if len(packed) + len(made["data"][local_audit.SUMMARY]) <= REPORT_BYTES_MAX:
        made["binaryData"] = {f"{local_audit.REPORT}.gz": b64encode(packed).decode()}
    return made


def _store(name: str, summary: Mapping[str, Any], html: str) -> bool:
    """Whether the report could be stored; a verdict stands without it."""
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
        _progress(f"the report could not be stored: {error}")
        return False


def _write_termination_message(said: Mapping[str, Any]) -> None:
    text = json.dumps(said)
    print(text, flush=True)
    try:
        MESSAGE.write_text(text)
    except OSError as error:
        _progress(f"no termination message: {error}")


def _progress(text: str) -> None:
    print(f"audit: {text} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
