"""Implements `epochmq audit`, which audits directories or a running group, and `epochmq report`.

`report` says where the last report is; on Kubernetes it shows the last verdict of each audit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from epochmq.exits import ExitCode, UsageError, print_error

if TYPE_CHECKING:
    from epochmq.verbs.target import KubernetesTarget
    from epochmq_spark.local_audit import AuditOutcome
    from epochmq_spark.plan_inputs import StoreOrigin
    from epochmq_spark.store_layout import AuditedReplica

AUDITS = "audits"
GROUP_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # a name of a resource
JAVA_VERSION_MIN = 17
JAVA_ANSWER_MAX_S = 20
LEFT_OUT_PRINTED = 20  # what was left out; the summary and the report have all of it


def run(
    directories: list[str],
    state: Path,
    *,
    group: str | None,
    out: Path | None,
    cores: int | None,
    metadata: Path | None,
    as_json: bool,
    fix_plan: bool = False,
    master: str | None = None,
    conf: Sequence[str] = (),
) -> int:
    """Audits directories, or a group that runs in the state directory; returns the exit code of the verdict.
    With `fix_plan` the standard output is the plan of repair, and the findings go to the standard error."""
    _require_spark_and_java()
    from epochmq_spark import local_audit, result_files, session

    try:
        config = session.parse_config(conf)
        session.check_master(master)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if cores is not None and master is not None:
        raise UsageError("--cores is for Spark on this machine: with --master, set its own options by --conf")
    expected: tuple[type[Exception], ...] = (
        result_files.ResultsNotWrittenError,
        *session.spark_errors(),
    )
    view = _read_metadata(metadata) if metadata is not None else None
    running = _running_group(directories, state)
    if running is None and (master is None or session.is_local(master)):
        _reject_missing_directories(directories, state)
    folder = out or state / AUDITS / time.strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}, expected a folder that can be written") from None
    origin = None
    with contextlib.ExitStack() as stack:
        if running is not None:
            if master is not None and not session.is_local(master):
                raise UsageError(
                    f"{running} runs on this machine, and executors of {master} cannot read its directories: "
                    "leave --master out, or audit copies in shared storage"
                )
            replicas, view, origin = stack.enter_context(_frozen(state, running, group, view))
        else:
            replicas = local_audit.replicas_of(directories, group)
            _reject_directories_without_stores(replicas)
            _reject_directories_in_use(replicas)
        try:
            outcome = local_audit.run(
                replicas,
                folder,
                cores=cores,
                metadata=view,
                progress=_progress,
                master=master,
                config=config,
                origin=origin,
            )
        except expected as error:
            print_error(session.describe_error(error))
            return ExitCode.FAILED
    if as_json:
        sys.stdout.write(json.dumps(outcome.summary, indent=2) + "\n")
    elif fix_plan:
        _print(outcome, sys.stderr)
        sys.stdout.write(_plan_text(outcome, directories, state if running else None))
    else:
        _print(outcome, sys.stdout)
    return outcome.exit_code


def _running_group(arguments: list[str], state: Path) -> str | None:
    """The name of the broker group that the only argument means; None if the arguments are directories. A
    directory of that name has precedence."""
    if len(arguments) != 1 or not GROUP_NAME.fullmatch(arguments[0]) or Path(arguments[0]).exists():
        return None
    from epochmq.verbs import running_group

    return arguments[0] if arguments[0] in running_group.group_names(state) else None


def _reject_missing_directories(arguments: Sequence[str], state: Path) -> None:
    """Raises UsageError for an argument that is neither a directory nor anything else at its path. Stores
    elsewhere, and what is at a path, are the audit's to judge."""
    from epochmq_spark import files, local_audit

    for text in arguments:
        path = files.local_path(local_audit.named_location(text)[1])
        if path is None or _is_there(path):
            continue
        problem = f"{text}: no such directory"
        if GROUP_NAME.fullmatch(text):
            raise UsageError(f"{problem}, {_not_a_group(text, state, alone=len(arguments) == 1)}")
        raise UsageError(f"{problem}; leave out a replica whose store is lost")


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True  # the audit says why it cannot be read
    return True


def _not_a_group(name: str, state: Path, *, alone: bool) -> str:
    from epochmq.verbs import running_group

    names = running_group.group_names(state)
    if not alone and name in names:
        return f"and a broker group is audited alone: epochmq audit {name}"
    there = f"groups there: {', '.join(names)}" if names else "name the state directory with --state DIR"
    return f"and no broker group of {state} has this name; {there}"


@contextlib.contextmanager
def _frozen(
    state: Path, name: str, group: str | None, view: Any
) -> Iterator[tuple[list[AuditedReplica], Any, StoreOrigin]]:
    """The replicas of a running group, frozen at a cut; the controllers' view at that time unless there is
    another one; and the directories that are frozen."""
    from epochmq.verbs import running_group
    from epochmq_spark import local_readers
    from epochmq_spark.files_at_cut import VolumeCut
    from epochmq_spark.fix_plan import LocalGroup
    from epochmq_spark.plan_inputs import StoreOrigin

    _progress(f"making the cut of {name}")
    made = running_group.make_cut(state, name)
    _progress(f"the cut is at offset {made.cut.confirmed}, epoch {made.cut.epoch} of {made.cut.master}")
    directories = [
        local_readers.DirectoryToFreeze(
            one.name,
            made.directories[one.name],
            VolumeCut(one.end, one.epochs) if one.name in made.alive else None,
        )
        for one in made.cut.replicas
    ]
    places = {pod: str(path.absolute()) for pod, path in made.directories.items()}
    origin = StoreOrigin(LocalGroup(name, str(state)), places)
    with local_readers.frozen(group or made.broker_name, directories) as replicas:
        yield replicas, view if view is not None else made.cut.view, origin


def _reject_directories_without_stores(replicas: Sequence[AuditedReplica]) -> None:
    """Raises UsageError if no directory holds a broker's store. One of several without one is a finding."""
    from epochmq_spark import files, store_layout

    for one in replicas:
        if files.local_path(one.location) is None:
            return
        try:
            if not store_layout.is_other_directory(one.location):
                return
        except OSError:
            return  # the audit says why it cannot be read
    names = ", ".join(one.location for one in replicas)
    raise UsageError(f"{names}: no broker's store, expected a directory with commitlog, or a volume of a pod")


def _reject_directories_in_use(replicas: Sequence[AuditedReplica]) -> None:
    """Raises UsageError if a broker uses one of the directories."""
    from epochmq_spark import local_audit

    for directory, pid in local_audit.directories_in_use(replicas):
        user = f"process {pid}" if pid else "a process of another container"
        raise UsageError(
            f"{directory} is in use by {user}: a broker writes to it. Audit a running group by its name "
            "(epochmq audit GROUP, as `epochmq status` shows it), or stop the broker, or audit a copy"
        )


def report(state: Path) -> int:
    """Prints the path of the last audit's report."""
    pages = sorted((state / AUDITS).glob("*/report.html"))
    if not pages:
        print_error(f"there is no report in {state / AUDITS}; create one with: epochmq audit DIR…")
        return ExitCode.NOTHING
    print(pages[-1].resolve())
    return ExitCode.OK


def report_of_cluster(target: KubernetesTarget) -> int:
    """Prints the last verdict of each audit on a cluster, and a command that shows its report."""
    from epochmq.verbs import kubernetes_cluster

    audits, kubectl = kubernetes_cluster.audits(target), kubernetes_cluster.kubectl_command(target)
    for name, status in audits:
        verdict, report = status.get("verdict"), status.get("report")
        if not verdict:
            print(f"{name}: no verdict: {status.get('phase', 'Waiting')}{_former_verdict(status)}")
            continue
        found = f"{status.get('errors', 0)} errors" if verdict == "damaged" else "no errors"
        print(f"{name}: {verdict}, {found}; finished at {status.get('lastFinished')}")
        if report:
            page = r"{.binaryData.report\.html\.gz}"
            print(
                f"  {kubectl} get configmap {report} -o jsonpath='{page}' | base64 -d | gunzip > report.html"
            )
    if not any(status.get("verdict") for _, status in audits):
        print_error("no audit in the namespace has a verdict yet; create a BrokerGroupAudit")
        return ExitCode.NOTHING
    return ExitCode.OK


def _former_verdict(status: Mapping[str, Any]) -> str:
    """The reason why the last run has no verdict, and the verdict before it; empty if no run has failed."""
    history = status.get("history") or []
    if not history or history[0].get("verdict"):
        return ""
    text = f": {history[0].get('reason') or 'failed'} at {history[0].get('finished')}"
    former = next((one for one in history if one.get("verdict")), None)
    return text + (f"; audit {former['number']} was {former['verdict']}" if former else "")


def _require_spark_and_java() -> None:
    """Raises UsageError if PySpark or Java is missing, or Java is too old. Like Spark, it takes the Java of
    JAVA_HOME, if that is set."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise UsageError("the audit needs PySpark: pip install 'epochmq[spark]'") from None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise UsageError(f"the audit needs a Java runtime, {JAVA_VERSION_MIN} or newer: {where}")
    version = _java_version(java)
    if version is not None and version < JAVA_VERSION_MIN:
        raise UsageError(
            f"the audit needs a Java runtime, {JAVA_VERSION_MIN} or newer: {java} is Java {version}; "
            "set JAVA_HOME to the directory of another one"
        )


def _java_version(java: str) -> int | None:
    """The major version of a Java runtime; None if it does not say."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_MAX_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else None


def _read_metadata(path: Path) -> Any:
    from epochmq_spark.checks import controller_view

    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        controller_view.parse_views(known)
        return known
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{path}: {error}, expected the output of: epochmq status -o json") from None


def _progress(text: str) -> None:
    print(f"audit: {text} …", file=sys.stderr, flush=True)


def _plan_text(outcome: AuditOutcome, arguments: Sequence[str], state: Path | None) -> str:
    """The plan of repair as a shell script."""
    from epochmq_spark import fix_plan

    again = ["epochmq", "audit", *arguments, *([] if state is None else ["--state", str(state)])]
    return fix_plan.shell_text(outcome.summary["fixPlan"], shlex.join(again))


def _print(outcome: AuditOutcome, stream: TextIO) -> None:
    from epochmq_spark import coverage
    from epochmq_spark.findings import sentence

    def write(text: str) -> None:
        print(text, file=stream)

    for row in outcome.findings:
        write(sentence(row))
    total = sum(outcome.summary["findingCounts"].values())
    if total > len(outcome.findings):
        write(f"… {total - len(outcome.findings)} more in {outcome.folder}")
    write(coverage.sentence(outcome.summary["coverage"]))
    for one in outcome.summary["coverage"]["leftOut"][:LEFT_OUT_PRINTED]:
        write("left out: " + ": ".join(text for text in (one["replica"], one["what"], one["why"]) if text))
    write(f"{outcome.summary['verdict']}: {total} findings; report: {outcome.folder / 'report.html'}")
