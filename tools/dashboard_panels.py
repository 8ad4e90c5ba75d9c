"""The panels of the chart's Grafana dashboards, and the metrics that each shows. `tools/dashboards.py` writes
the dashboards. A module of definitions: its length is the number of panels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries` are expressions with their legends. `unit` is Grafana's. `kind` is Grafana's
    type of panel."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A selection at the top of a dashboard: the values of a label."""

    name: str
    metric: str
    label: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard; the panels of a row have the same width."""

    name: str
    title: str
    variables: tuple[Variable, ...]
    rows: tuple[tuple[Panel, ...], ...]


OF_GROUP = 'namespace=~"$namespace",broker_name=~"$group"'
OF_TOPIC = 'namespace=~"$namespace",node_id=~"$group",topic=~"$topic"'
OF_CONTROLLERS = 'namespace=~"$namespace",group=~"$controllers"'


def group_rate(counter: str) -> str:
    """A group's increase a second."""
    return f"sum by (broker_name) (rate({counter}{{{OF_GROUP}}}[5m]))"


def group_max(metric: str) -> str:
    """The largest value that a broker of a group reports."""
    return f"max by (broker_name) ({metric}{{{OF_GROUP}}})"


def topic_rate(counter: str, by: str = "topic, consumer_group") -> str:
    """A topic's increase a second."""
    return f"sum by ({by}) (rate({counter}{{{OF_TOPIC}}}[5m]))"


def topic_increase(counter: str) -> str:
    """A topic's increase in the last hour."""
    return f"sum by (topic, consumer_group) (increase({counter}{{{OF_TOPIC}}}[1h]))"


def quantile(share: float) -> str:
    """A quantile of the durations of the operator's reconciliations."""
    return f"histogram_quantile({share:g}, sum by (le) (rate(epochmq_operator_pass_seconds_bucket[5m])))"


GROUP = Dashboard(
    "group",
    "EpochMQ / Broker group",
    (
        Variable("namespace", "epochmq_broker_role", "namespace"),
        Variable("group", 'epochmq_broker_role{namespace=~"$namespace"}', "broker_name"),
    ),
    (
        (
            Panel(
                "Master",
                ((group_max("epochmq_group_has_master"), "{{broker_name}}"),),
                kind="stat",
                text="1: the group has a master.",
            ),
            Panel(
                "Takes messages",
                ((group_max("epochmq_broker_takes_messages"), "{{broker_name}}"),),
                kind="stat",
            ),
            Panel(
                "SyncStateSet",
                (
                    (
                        group_max("epochmq_group_sync_state_set_size"),
                        "{{broker_name}} in sync",
                    ),
                    (
                        group_max("epochmq_group_replicas"),
                        "{{broker_name}} registered",
                    ),
                ),
                kind="stat",
            ),
            Panel(
                "Master epoch",
                ((group_max("epochmq_broker_master_epoch"), "{{broker_name}}"),),
                kind="stat",
                text="Grows with every change of the master.",
            ),
        ),
        (
            Panel(
                "Messages stored",
                ((f"sum by (broker_name) (epochmq_broker_put_rate{{{OF_GROUP}}})", "{{broker_name}}"),),
                "cps",
            ),
            Panel(
                "Messages fetched",
                ((f"sum by (broker_name) (epochmq_broker_get_rate{{{OF_GROUP}}})", "{{broker_name}}"),),
                "cps",
            ),
            Panel(
                "Failed sends and reads",
                (
                    (
                        group_rate("epochmq_broker_put_failures_total"),
                        "{{broker_name}} sends",
                    ),
                    (
                        group_rate("epochmq_broker_read_failures_total"),
                        "{{broker_name}} reads",
                    ),
                ),
                "cps",
            ),
        ),
        (
            Panel(
                "Lag of replicas",
                ((f"epochmq_broker_lag_bytes{{{OF_GROUP}}}", "{{broker_name}}/{{broker_id}}"),),
                "bytes",
            ),
            Panel(
                "Lag of replicas in time",
                ((f"epochmq_broker_lag_seconds{{{OF_GROUP}}}", "{{broker_name}}/{{broker_id}}"),),
                "s",
            ),
            Panel(
                "Write lease of the master, and promises of its replicas",
                (
                    (f"epochmq_broker_lease_remaining_seconds{{{OF_GROUP}}}", "lease {{broker_name}}"),
                    (f"epochmq_broker_promised_seconds{{{OF_GROUP}}}", "promises {{broker_name}}"),
                ),
                "s",
            ),
        ),
        (
            Panel(
                "Disk used",
                ((f"epochmq_broker_disk_used_ratio{{{OF_GROUP}}}", "{{broker_name}}/{{broker_id}}"),),
                "percentunit",
            ),
            Panel(
                "Unflushed and not dispatched",
                (
                    (
                        f"epochmq_broker_unflushed_bytes{{{OF_GROUP}}}",
                        "{{broker_name}}/{{broker_id}} unflushed",
                    ),
                    (
                        f"epochmq_broker_dispatch_behind_bytes{{{OF_GROUP}}}",
                        "{{broker_name}}/{{broker_id}} not dispatched",
                    ),
                ),
                "bytes",
            ),
            Panel(
                "Rejected by access control",
                (
                    (
                        group_rate("epochmq_broker_unauthenticated_requests_total"),
                        "{{broker_name}} unknown users",
                    ),
                    (
                        group_rate("epochmq_broker_unauthorized_requests_total"),
                        "{{broker_name}} no permission",
                    ),
                ),
                "cps",
            ),
        ),
        (
            Panel(
                "Transactions",
                (
                    (
                        group_rate("epochmq_broker_transactions_committed_total"),
                        "{{broker_name}} committed",
                    ),
                    (
                        group_rate("epochmq_broker_transactions_rolled_back_total"),
                        "{{broker_name}} rolled back",
                    ),
                ),
                "cps",
            ),
            Panel(
                "Timer messages",
                (
                    (f"epochmq_broker_timer_pending{{{OF_GROUP}}}", "{{broker_name}}/{{broker_id}} pending"),
                    (
                        f"epochmq_broker_timer_read_behind_seconds{{{OF_GROUP}}}",
                        "{{broker_name}}/{{broker_id}} seconds behind",
                    ),
                ),
            ),
            Panel(
                "Requests held or relayed in switchovers",
                (
                    (f"epochmq_broker_held_requests{{{OF_GROUP}}}", "{{broker_name}}/{{broker_id}} held"),
                    (
                        f"rate(epochmq_broker_relayed_requests_total{{{OF_GROUP}}}[5m])",
                        "{{broker_name}}/{{broker_id}} relayed a second",
                    ),
                ),
            ),
        ),
    ),
)

TOPIC = Dashboard(
    "topic",
    "EpochMQ / Topic",
    (
        Variable("namespace", "rocketmq_messages_in_total", "namespace"),
        Variable("group", 'rocketmq_messages_in_total{namespace=~"$namespace"}', "node_id"),
        Variable(
            "topic",
            'rocketmq_messages_in_total{namespace=~"$namespace",node_id=~"$group",is_system="false"}',
            "topic",
        ),
    ),
    (
        (
            Panel(
                "Messages in",
                ((topic_rate("rocketmq_messages_in_total", "topic"), "{{topic}}"),),
                "cps",
            ),
            Panel(
                "Messages out",
                (
                    (
                        topic_rate("rocketmq_messages_out_total"),
                        "{{topic}} to {{consumer_group}}",
                    ),
                ),
                "cps",
            ),
        ),
        (
            Panel(
                "Bytes in",
                ((topic_rate("rocketmq_throughput_in_total", "topic"), "{{topic}}"),),
                "Bps",
            ),
            Panel(
                "Bytes out",
                (
                    (
                        topic_rate("rocketmq_throughput_out_total"),
                        "{{topic}} to {{consumer_group}}",
                    ),
                ),
                "Bps",
            ),
        ),
        (
            Panel(
                "Messages not consumed",
                (
                    (
                        f"sum by (topic, consumer_group) (rocketmq_consumer_lag_messages{{{OF_TOPIC}}})",
                        "{{consumer_group}} of {{topic}}",
                    ),
                ),
            ),
            Panel(
                "Age of the oldest message not consumed",
                (
                    (
                        "max by (topic, consumer_group)"
                        f" (rocketmq_consumer_lag_latency_milliseconds{{{OF_TOPIC}}})",
                        "{{consumer_group}} of {{topic}}",
                    ),
                ),
                "ms",
            ),
            Panel(
                "Dead-letter messages",
                (
                    (
                        topic_increase("rocketmq_send_to_dlq_messages_total"),
                        "{{consumer_group}} of {{topic}}",
                    ),
                ),
                text="In the last hour.",
            ),
        ),
    ),
)

CONTROLLER = Dashboard(
    "controller",
    "EpochMQ / Controllers",
    (
        Variable("namespace", "epochmq_controller_role", "namespace"),
        Variable("controllers", 'epochmq_controller_role{namespace=~"$namespace"}', "group"),
    ),
    (
        (
            Panel(
                "Leader",
                ((f"sum by (group) (epochmq_controller_leads{{{OF_CONTROLLERS}}})", "{{group}}"),),
                kind="stat",
                text="1: one controller leads.",
            ),
            Panel(
                "Controllers that vote",
                ((f"max by (group) (epochmq_controller_members{{{OF_CONTROLLERS}}})", "{{group}}"),),
                kind="stat",
            ),
            Panel(
                "Term",
                ((f"max by (group) (epochmq_controller_term{{{OF_CONTROLLERS}}})", "{{group}}"),),
                kind="stat",
                text="Grows with every election.",
            ),
        ),
        (
            Panel(
                "Entries committed a second",
                ((f"rate(epochmq_controller_committed_index{{{OF_CONTROLLERS}}}[5m])", "{{group}}/{{id}}"),),
                "cps",
            ),
            Panel(
                "Entries committed and not applied",
                (
                    (
                        f"epochmq_controller_committed_index{{{OF_CONTROLLERS}}}"
                        f" - epochmq_controller_applied_index{{{OF_CONTROLLERS}}}",
                        "{{group}}/{{id}}",
                    ),
                ),
            ),
        ),
        (
            Panel(
                "Replicas whose heartbeats arrive",
                (
                    (
                        'max by (broker_name) (epochmq_group_replicas_alive{namespace=~"$namespace"})',
                        "{{broker_name}}",
                    ),
                ),
            ),
            Panel(
                "Groups that wait for missing replicas",
                (('max by (broker_name) (epochmq_group_waits{namespace=~"$namespace"})', "{{broker_name}}"),),
            ),
            Panel(
                "Replicas that may lack acknowledged messages",
                (
                    (
                        'max by (broker_name) (epochmq_group_replicas_in_doubt{namespace=~"$namespace"})',
                        "{{broker_name}}",
                    ),
                ),
            ),
        ),
        (
            Panel(
                "Nameservers: brokers",
                (('epochmq_nameserver_brokers{namespace=~"$namespace"}', "{{pod}}"),),
            ),
            Panel(
                "Nameservers: topics",
                (('epochmq_nameserver_topics{namespace=~"$namespace"}', "{{pod}}"),),
            ),
        ),
    ),
)

OPERATOR = Dashboard(
    "operator",
    "EpochMQ / Operator",
    (),
    (
        (
            Panel("Active operators", (("sum(epochmq_operator_leads)", "active"),), kind="stat"),
            Panel(
                "Groups by phase",
                (("sum by (kind, phase) (epochmq_group_phase)", "{{kind}} {{phase}}"),),
                kind="stat",
            ),
            Panel(
                "Topics and users that are as desired",
                (
                    ("sum by (kind) (epochmq_entity_ready)", "{{kind}} ready"),
                    ("count by (kind) (epochmq_entity_ready)", "{{kind}}"),
                ),
                kind="stat",
            ),
        ),
        (
            Panel(
                "Reconciliations",
                (
                    (
                        "sum by (kind, outcome) (rate(epochmq_operator_passes_total[5m]))",
                        "{{kind}} {{outcome}}",
                    ),
                ),
                "cps",
            ),
            Panel(
                "Duration of reconciliations",
                (
                    (
                        quantile(0.5),
                        "median",
                    ),
                    (
                        quantile(0.99),
                        "99 %",
                    ),
                ),
                "s",
            ),
        ),
        (
            Panel(
                "Writes",
                (("sum by (effect) (rate(epochmq_operator_effects_total[5m]))", "{{effect}}"),),
                "cps",
            ),
            Panel(
                "Failed requests to sidecars",
                (("sum(rate(epochmq_operator_sidecar_failures[5m]))", "failures"),),
                "cps",
            ),
            Panel(
                "Reverted changes of topics and users",
                (
                    (
                        "sum by (kind, namespace, name) (increase(epochmq_entity_drifts[1h]))",
                        "{{kind}} {{namespace}}/{{name}}",
                    ),
                ),
                text="In the last hour.",
            ),
        ),
        (
            Panel(
                "Ready replicas",
                (("epochmq_group_ready_replicas", "{{kind}} {{namespace}}/{{name}}"),),
            ),
        ),
    ),
)

AUDIT = Dashboard(
    "audit",
    "EpochMQ / Audits",
    (Variable("namespace", "epochmq_audit_failed", "namespace"),),
    (
        (
            Panel(
                "Verdicts",
                (
                    (
                        'sum by (verdict) (epochmq_audit_verdict{namespace=~"$namespace"})',
                        "{{verdict}}",
                    ),
                ),
                kind="stat",
            ),
            Panel(
                "Audits without a verdict",
                (('sum(epochmq_audit_failed{namespace=~"$namespace"})', "failed"),),
                kind="stat",
            ),
        ),
        (
            Panel(
                "Findings of the last audits",
                (
                    (
                        'epochmq_audit_findings{namespace=~"$namespace"}',
                        "{{namespace}}/{{name}} of {{group}}: {{severity}}",
                    ),
                ),
            ),
            Panel(
                "Time since the last audit",
                (
                    (
                        'time() - epochmq_audit_finished_timestamp_seconds{namespace=~"$namespace"}',
                        "{{namespace}}/{{name}} of {{group}}",
                    ),
                ),
                "s",
            ),
        ),
    ),
)

DASHBOARDS = (GROUP, TOPIC, CONTROLLER, OPERATOR, AUDIT)
