"""Tests every alert of the chart with Prometheus itself: it fires when its cause lasts long enough, says what
its summary promises, and resolves. Prometheus' promtool evaluates the chart's rules in simulated time over
what the sidecars and the operator serve at `/metrics`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from epochmq_operator.plans.objects import Ref
from epochmq_protocol.admin_api.results import MemberGroupState
from tests.kubernetes.monitored_group import (
    BROKER_NAME,
    GROUP,
    NAMESPACE,
    OPERATOR,
    MonitoredGroup,
    ScrapedTarget,
    pod_labels,
)
from tests.kubernetes.testbed.cache import ROOT
from tests.kubernetes.testbed.prerequisites import MissingPrerequisiteError
from tests.kubernetes.testbed.programs import promtool
from tests.unit.operator.plans.fake_api import FakeApi
from tests.unit.operator.plans.updated_groups import ready_group, run

RULES = ROOT / "charts" / "epochmq-operator" / "files" / "alerts.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
INTERVAL_S = 15
"""The chart's interval between two scrapes."""
HEALTHY_S, RECOVERED_S = 120, 720
"""How long the group is healthy before and after the fault; longer than what an alert looks back."""
TIMEOUT_S = 120

Change = Callable[[MonitoredGroup], None]


def nothing(group: MonitoredGroup) -> None:
    """Leaves the group healthy."""


@dataclass(frozen=True)
class AlertCase:
    """A fault that makes one alert fire, with the labels and the summary of that alert. `prepare` changes the
    group before the fault, too."""

    fault: Change
    labels: dict[str, str]
    summary: str
    prepare: Change = field(default=nothing)


def no_master(group: MonitoredGroup) -> None:
    group.change_replica_group(master_broker_id=None)


def no_messages(group: MonitoredGroup) -> None:
    group.change_brokers("orders-broker-0", takes_messages=False)


def out_of_sync(group: MonitoredGroup) -> None:
    group.change_replica_group(sync_state_set=[1, 2])


def lagging(group: MonitoredGroup) -> None:
    group.change_brokers("orders-broker-2", lag_bytes=1 << 20, lag_ms=61_000)


def unreadable(group: MonitoredGroup) -> None:
    group.values["orders-broker-1"]["broker_read_failures_total"] = 3.0


def rotten(group: MonitoredGroup) -> None:
    group.values["orders-broker-2"]["broker_damaged_bytes"] = 4096.0


def without_controllers(group: MonitoredGroup) -> None:
    group.controllers.clear()
    for pod in group.brokers:
        change_role(group, pod, "master" if pod == "orders-broker-0" else "slave")


def change_role(group: MonitoredGroup, pod: str, role: Any) -> None:
    since_ms = 1767225600000 if role == "acting" else None
    member = MemberGroupState(
        role=role, acting_since_ms=since_ms, isolated_because="", min_broker_id=0, alive_replicas=3, escape=[]
    )
    group.change_brokers(pod, group=member)


def acting(group: MonitoredGroup) -> None:
    change_role(group, "orders-broker-1", "acting")


def not_escaping(group: MonitoredGroup) -> None:
    acting(group)
    group.values["orders-broker-1"]["broker_escape_waiting:delay"] = 2.0


def no_leader(group: MonitoredGroup) -> None:
    group.change_controllers(leader=None, leads=False, role="candidate")


def silent(group: MonitoredGroup) -> None:
    group.silent.add("orders-broker-2")


def standby_operator(group: MonitoredGroup) -> None:
    group.operator_leads = False


def stale_watch(group: MonitoredGroup) -> None:
    group.watch_age_s = 700.0


def failing_passes(group: MonitoredGroup) -> None:
    group.failed_passes = 20


def blocked(group: MonitoredGroup) -> None:
    group.change_status("BrokerGroup", phase="Blocked")


def by_operator(group: MonitoredGroup, fault: Callable[[FakeApi], None], began_s: int = 0) -> None:
    """The statuses are those that the operator writes after this fault in a simulated cluster. The fault
    began so many seconds before simulated time."""
    api = ready_group()
    api.now = -float(began_s)
    fault(api)
    run(api)
    for kind in ("BrokerGroup", "ControllerGroup"):
        group.resources[kind] = api.status(Ref(kind, NAMESPACE, "orders"))


def degraded(group: MonitoredGroup) -> None:
    by_operator(group, lambda api: api.unready.add("orders-broker-2"))


def controller_down(group: MonitoredGroup) -> None:
    by_operator(group, lambda api: api.unready.add("orders-controller-1"))


def bad_image(api: FakeApi) -> None:
    api.put("BrokerGroup", "orders", {"replicas": 3, "image": "bad:1"})


def stuck(group: MonitoredGroup) -> None:
    by_operator(group, bad_image, began_s=1800)


def topic_rejected(group: MonitoredGroup) -> None:
    group.change_status("Topic", phase="Failed")


def damaged(group: MonitoredGroup) -> None:
    group.change_status("BrokerGroupAudit", verdict="damaged")


def without_verdict(group: MonitoredGroup) -> None:
    entry = {"number": 2, "verdict": "", "finished": "2027-01-15T09:00:00Z"}
    group.change_status("BrokerGroupAudit", verdict="", history=[entry])


def without_backup(group: MonitoredGroup) -> None:
    group.change_status("BrokerGroupBackup", history=[{"number": 2, "backup": ""}])


def full(group: MonitoredGroup) -> None:
    group.values["orders-broker-0"]["broker_disk_used_ratio"] = 0.86


def with_certificate(group: MonitoredGroup) -> None:
    """The first broker has a certificate for ten days; simulated time begins in 1970."""
    group.values["orders-broker-0"]["tls_files_rejected:broker"] = 0.0
    group.values["orders-broker-0"]["tls_certificate_expiry_time_seconds:broker"] = 864_000.0


def rejected_files(group: MonitoredGroup) -> None:
    group.values["orders-broker-0"]["tls_files_rejected:broker"] = 1.0


def expiring(group: MonitoredGroup) -> None:
    group.values["orders-broker-0"]["tls_certificate_expiry_time_seconds:broker"] = 259_000.0


def replica(number: int) -> dict[str, str]:
    """The labels of alerts about one replica."""
    return {**GROUP, "broker_id": str(number), **pod_labels(f"orders-broker-{number - 1}")}


def resource(kind: str, **more: str) -> dict[str, str]:
    """The labels of alerts about a resource, which the operator exports."""
    found = {"kind": kind} if kind else {}
    return {**OPERATOR, **found, "namespace": NAMESPACE, "name": "orders", **more}


CASES = {
    "EpochMQGroupWithoutMaster": AlertCase(
        no_master, GROUP, f"Replica group {BROKER_NAME} has no master and takes no messages."
    ),
    "EpochMQGroupTakesNoMessages": AlertCase(
        no_messages, GROUP, f"No replica of {BROKER_NAME} takes messages."
    ),
    "EpochMQGroupOutOfSync": AlertCase(
        out_of_sync,
        GROUP,
        f"A replica of {BROKER_NAME} has been out of the SyncStateSet for five minutes.",
    ),
    "EpochMQReplicaBehind": AlertCase(
        lagging, replica(3), f"Replica 3 of {BROKER_NAME} is more than a minute behind its master."
    ),
    "EpochMQBrokerCannotRead": AlertCase(
        unreadable, replica(2), f"Reads from the disk of replica 2 of {BROKER_NAME} fail."
    ),
    "EpochMQLogDamaged": AlertCase(
        rotten, replica(3), f"Old messages in the log of replica 3 of {BROKER_NAME} are damaged on the disk."
    ),
    "EpochMQActingMaster": AlertCase(
        acting,
        GROUP,
        f"A slave of {BROKER_NAME} has acted for the master for five minutes; the group takes no messages.",
        without_controllers,
    ),
    "EpochMQMessagesCannotEscape": AlertCase(
        not_escaping,
        GROUP,
        f"Messages of {BROKER_NAME} that are due wait for another group to take them.",
        without_controllers,
    ),
    "EpochMQControllersWithoutLeader": AlertCase(
        no_leader,
        {"namespace": NAMESPACE, "group": "orders"},
        "Controllers orders have no leader; no master can be elected.",
    ),
    "EpochMQProcessSilent": AlertCase(
        silent,
        pod_labels("orders-broker-2"),
        "The main process of pod orders-broker-2 does not respond to its sidecar.",
    ),
    "EpochMQOperatorAbsent": AlertCase(
        standby_operator, {}, "No operator is active. Groups keep serving, but are not repaired."
    ),
    "EpochMQOperatorWatchStale": AlertCase(
        stale_watch,
        {"kind": "Pod", "watched_namespace": "all namespaces"},
        "The operator has seen no Pod in all namespaces for ten minutes.",
    ),
    "EpochMQOperatorFails": AlertCase(
        failing_passes,
        {"kind": "BrokerGroup"},
        "The operator cannot reconcile a BrokerGroup; its reconciliations keep failing.",
    ),
    "EpochMQGroupNeedsAPerson": AlertCase(
        blocked,
        resource("BrokerGroup", phase="Blocked"),
        "BrokerGroup trade/orders is Blocked: the operator waits for a person.",
    ),
    "EpochMQGroupDegraded": AlertCase(
        degraded,
        resource("BrokerGroup", phase="Degraded"),
        "BrokerGroup trade/orders has been degraded for 15 minutes.",
    ),
    "EpochMQControllerDown": AlertCase(
        controller_down,
        resource("ControllerGroup", type="Degraded", status="True"),
        "A controller of ControllerGroup trade/orders has been down for ten minutes.",
    ),
    "EpochMQPlanStuck": AlertCase(
        stuck,
        resource("BrokerGroup", plan="update"),
        "The plan update of BrokerGroup trade/orders has been at one step for half an hour.",
    ),
    "EpochMQTopicOrUserNotSynced": AlertCase(
        topic_rejected, resource("Topic"), "Topic trade/orders is not as desired in every broker group."
    ),
    "EpochMQReplicasDamaged": AlertCase(
        damaged,
        resource("", group="orders", verdict="damaged"),
        "Audit trade/orders found damage in the replicas of orders.",
    ),
    "EpochMQAuditFailed": AlertCase(
        without_verdict,
        resource("", group="orders"),
        "The last audit of orders (trade/orders) has no verdict.",
    ),
    "EpochMQBackupFailed": AlertCase(
        without_backup,
        resource("", group="orders"),
        "The last run of the backup of orders (trade/orders) has no backup.",
    ),
    "EpochMQCertificateFilesRejected": AlertCase(
        rejected_files,
        {**replica(1), "kind": "broker"},
        "The broker in trade/orders-broker-0 cannot use its new certificate files.",
        with_certificate,
    ),
    "EpochMQCertificateExpires": AlertCase(
        expiring,
        {**replica(1), "kind": "broker"},
        "The certificate of the broker in trade/orders-broker-0 expires in less than three days.",
        with_certificate,
    ),
    "EpochMQDiskFillsUp": AlertCase(
        full, replica(1), f"The volume of replica 1 of {BROKER_NAME} is more than 85% full."
    ),
}
"""A case for each alert of the chart."""


def hibernated(group: MonitoredGroup) -> None:
    """All replicas have stopped; the last one is still in the SyncStateSet."""
    group.brokers.clear()
    group.change_replica_group(master_broker_id=None, sync_state_set=[1])
    group.change_status("BrokerGroup", phase="Hibernated", targetReplicas=0, readyReplicas=0)


def scaled_down(group: MonitoredGroup) -> None:
    """A replica has left; the controllers still know it."""
    del group.brokers["orders-broker-2"]
    group.change_replica_group(sync_state_set=[1, 2])
    group.change_status("BrokerGroup", targetReplicas=2, readyReplicas=2)


QUIET_CASES: dict[str, Change] = {
    "a healthy group": nothing,
    "a hibernated group": hibernated,
    "a group that was scaled down": scaled_down,
}
"""States of groups that are no fault: no alert fires."""


def run_promtool(*arguments: str, text: str = "") -> None:
    """Runs promtool; AssertionError with its output if it fails."""
    try:
        program = promtool()
    except MissingPrerequisiteError as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [str(program), *arguments], input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def seconds(duration: str) -> int:
    """A duration of a rule, such as 30s, 5m or 1h, in seconds."""
    found = re.fullmatch(r"(\d+)([smh])", duration)
    assert found, duration
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def series_of(target: ScrapedTarget) -> dict[str, str]:
    """The values of a target's series, as Prometheus stores them."""
    found = {}
    for family in text_string_to_metric_families(target.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            for name, value in target.labels.items():
                if name in labels and not target.honors_labels:
                    labels[f"exported_{name}"] = labels.pop(name)
                labels.setdefault(name, value)
            shown = ",".join(f"{name}={yaml_quoted(value)}" for name, value in sorted(labels.items()))
            found[f"{sample.name}{{{shown}}}"] = repr(sample.value)
    return found


def yaml_quoted(text: str) -> str:
    """A label's value in the notation of series."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Timeline:
    """What Prometheus stores while the group passes through several phases. A series that is not served any
    more ends with a stale marker."""

    def __init__(self) -> None:
        self.steps = 0
        self._values: dict[str, list[str]] = {}

    @property
    def end_s(self) -> int:
        """The time of the last scrape."""
        return (self.steps - 1) * INTERVAL_S

    def add(self, targets: list[ScrapedTarget], length_s: int) -> None:
        """Adds the scrapes of a phase in which all targets serve the same."""
        now = {name: value for target in targets for name, value in series_of(target).items()}
        steps = length_s // INTERVAL_S
        for name in self._values.keys() | now.keys():
            former = self._values.setdefault(name, ["_"] * self.steps)
            if name in now:
                former += [now[name]] * steps
            else:
                ended = "_" if not former or former[-1] == "_" else "stale"
                former += [ended] + ["_"] * (steps - 1)
        self.steps += steps

    def document(self) -> list[dict[str, str]]:
        """The series for promtool."""
        return [{"series": name, "values": " ".join(values)} for name, values in self._values.items()]


def expectation(alert: str, at_s: int, *firing: dict[str, Any]) -> dict[str, Any]:
    """What promtool is to find firing of an alert at a time."""
    return {"alertname": alert, "eval_time": f"{at_s}s", "exp_alerts": list(firing)}


def check(folder: Path, timeline: Timeline, expectations: list[dict[str, Any]]) -> None:
    """Has promtool evaluate the chart's rules over the timeline."""
    interval = f"{INTERVAL_S}s"
    test = {"interval": interval, "input_series": timeline.document(), "alert_rule_test": expectations}
    document = {"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": [test]}
    path = folder / "alerts_test.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    run_promtool("test", "rules", str(path))


def test_every_alert_has_a_case() -> None:
    assert set(ALERTS) == set(CASES)


@pytest.mark.soak  # promtool takes two and a half minutes of CPU to build
@pytest.mark.parametrize("alert", CASES)
async def test_the_alert_fires_when_its_cause_lasts_and_resolves(alert: str, tmp_path: Path) -> None:
    case, rule = CASES[alert], ALERTS[alert]
    lasts_s = seconds(rule.get("for", "0s"))
    healthy, faulty = MonitoredGroup(), MonitoredGroup()
    for group in (healthy, faulty):
        case.prepare(group)
    case.fault(faulty)
    timeline = Timeline()
    timeline.add(await healthy.scrape(), HEALTHY_S)
    expected = [expectation(name, timeline.end_s) for name in ALERTS]
    timeline.add(await faulty.scrape(), lasts_s + 2 * INTERVAL_S)
    if lasts_s:
        expected.append(expectation(alert, HEALTHY_S + lasts_s - INTERVAL_S))
    firing = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    expected.append(expectation(alert, HEALTHY_S + lasts_s + INTERVAL_S, firing))
    timeline.add(await healthy.scrape(), RECOVERED_S)
    expected += [expectation(name, timeline.end_s) for name in ALERTS]
    check(tmp_path, timeline, expected)


@pytest.mark.soak
@pytest.mark.parametrize("state", QUIET_CASES)
async def test_no_alert_fires_for_a_state_that_is_no_fault(state: str, tmp_path: Path) -> None:
    before, after = MonitoredGroup(), MonitoredGroup()
    QUIET_CASES[state](after)
    timeline = Timeline()
    timeline.add(await before.scrape(), HEALTHY_S)
    longest_s = max(seconds(rule.get("for", "0s")) for rule in ALERTS.values())
    timeline.add(await after.scrape(), longest_s + 2 * INTERVAL_S)
    times = (HEALTHY_S + 2 * INTERVAL_S, timeline.end_s // 2, timeline.end_s)
    check(tmp_path, timeline, [expectation(name, at_s) for at_s in times for name in ALERTS])


@pytest.mark.soak
async def test_prometheus_reads_what_every_target_serves() -> None:
    for target in await MonitoredGroup().scrape():
        run_promtool("check", "metrics", "--extended", "--lint=none", text=target.text)
