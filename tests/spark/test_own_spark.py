"""Tests audits on the user's own Spark: with executors that are processes of their own, by `spark-submit`,
and by the options of `epochmq audit`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq.app import run
from epochmq_spark import results
from epochmq_spark.findings import KINDS
from tests.spark import group_copies, seeded_groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


@pytest.mark.soak
def test_spark_submit_runs_the_audit_on_executors_and_logs_its_events(tmp_path: Path) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 8)
    _, paths, injected = group_copies.damaged(source, tmp_path / "groups", "bit_in_body", 8)
    events = tmp_path / "events"
    events.mkdir()
    config = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.executor.memory": "600m",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    options = [text for key, value in config.items() for text in ("--conf", f"{key}={value}")]
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "spark-submit"),
            *("--master", "local-cluster[1,1,1024]", *options),
            str(ROOT / "examples/audit_with_spark_submit.py"),
            *("--out", (tmp_path / "out").as_uri()),
            *(f"{path.name}={path.as_uri()}" for path in paths),
        ],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 4, done.stderr[-3000:]
    assert f"error: record.checksum: {KINDS['record.checksum'][1]}: replica {injected.replica}" in done.stdout
    out = tmp_path / "out"
    assert json.loads((out / results.SUMMARY_FILE).read_text())["findingCounts"] == {"record.checksum": 1}
    assert (out / results.REPORT_FILE).read_text().startswith("<!doctype html>")
    assert list((out / results.FINDINGS_FILE).glob("*.parquet"))
    log = next(path for path in events.rglob("*") if path.is_file() and path.stat().st_size)
    executors = {
        event["Executor ID"]
        for event in map(json.loads, log.read_text().splitlines())
        if event["Event"] == "SparkListenerExecutorAdded"
    }
    assert executors - {"driver"}


def persisted(spark: SparkSession) -> set[int]:
    """The numbers of the tables that Spark keeps; other tests may have left some."""
    return {int(number) for number in spark.sparkContext._jsc.getPersistentRDDs()}


def test_the_command_takes_a_master_and_configuration(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, before = seeded_groups.create_healthy_group(tmp_path / "healthy", 9), persisted(spark)
    former = spark.conf.get("spark.sql.shuffle.partitions")
    arguments = ["audit", *map(str, source), "--out", str(tmp_path / "out"), "-o", "json"]
    try:
        code = run([*arguments, "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=3"])
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(former))
    assert code == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "healthy"
    assert spark.read.parquet(str(tmp_path / "out" / results.FINDINGS_FILE)).count() == 0
    assert persisted(spark) <= before


@pytest.mark.usefixtures("spark")
def test_the_notebook_audits_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 10)
    notebook = json.loads((ROOT / "examples" / "audit.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    example = '["a=/mnt/a/store", "b=/mnt/b/store", "c=/mnt/c/store"]'
    assert example in cells[0]
    for cell in cells:
        exec(cell.replace(example, repr([str(path) for path in source])), names)
    assert names["summary"]["verdict"] == "healthy"
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
