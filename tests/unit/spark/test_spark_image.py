"""Tests the entrypoint of the audit image, and the example of a SparkApplication that uses the image."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

import yaml

from epochmq_spark import local_audit, session, spark_submit, verdict

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "audit-spark-application.yaml"


def started(folder: Path, *arguments: str) -> list[str]:
    """The program that the entrypoint starts, and its arguments."""
    for name in ("python3", "spark-submit", "epochmq"):
        program = folder / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        program.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SPARK_DRIVER_BIND_ADDRESS": "127.9.9.9"}
    command = ["sh", str(ROOT / "images" / "spark-entrypoint.sh"), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=300
    ).stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["driver", "--job", "j"], ["python3", "-m", "epochmq_spark.kubernetes_driver", "--job", "j"]),
        (["reader", "--root", "/v"], ["python3", "-m", "epochmq_spark.volume_reader", "--root", "/v"]),
        (["audit", "a b"], ["epochmq", "audit", "a b"]),
    ],
)
def test_the_entrypoint_starts_the_program_of_each_pod(
    arguments: list[str], expected: list[str], tmp_path: Path
) -> None:
    assert started(tmp_path, *arguments) == expected


def test_the_entrypoint_runs_the_driver_of_an_application_that_spark_starts(tmp_path: Path) -> None:
    """The arguments are those that Spark gives to the driver's container (KubernetesDriverBuilder)."""
    given = ["--properties-file", "/opt/spark/conf/spark.properties"]
    given += [
        "--class",
        "org.apache.spark.deploy.PythonRunner",
        "local:///opt/epochmq/audit.py",
        "a=s3://b/a b",
    ]
    program, *arguments = started(tmp_path, "driver", *given)
    assert program == "spark-submit"
    assert arguments[-len(given) - 2 :] == ["--deploy-mode", "client", *given]
    assert "spark.driver.bindAddress=127.9.9.9" in arguments


def test_the_example_of_a_spark_application_fits_the_image_and_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    application = spec["mainApplicationFile"].removeprefix("local://")
    copied = re.search(r"^COPY (\S+) (\S+audit\.py)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert copied is not None
    assert copied[2] == application
    assert (ROOT / copied[1]).samefile(spark_submit.__file__)
    locked = re.search(r"^pyspark==(\S+)", (ROOT / "requirements-spark.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert spec["sparkVersion"] == locked[1]
    audited: list[object] = []

    class Session:
        def stop(self) -> None:
            pass

    def run_in(spark: object, replicas: list[object], folder: str, **_: object) -> object:
        audited.extend((replicas, folder))
        coverage = dict.fromkeys(
            ("replicasCompared", "replicasSupplied", "comparedBytes", "records", "bytes", "units"), 3
        )
        coverage |= {"indexEntries": 0, "leftOutCount": 0}
        return verdict.summary({"log.hole": 1}, [], [], coverage=coverage), []

    monkeypatch.setattr(session, "user_session", Session)
    monkeypatch.setattr(local_audit, "run_in", run_in)
    monkeypatch.setattr(local_audit, "replicas_of", lambda texts, group: texts)
    assert spark_submit.main(spec["arguments"]) == 0
    assert audited == [
        [f"{name}=s3://copies/orders-broker-{number}/store" for number, name in enumerate("abc")],
        "file:///tmp/audit",
    ]
    assert "damaged: 1 findings" in capsys.readouterr().out
