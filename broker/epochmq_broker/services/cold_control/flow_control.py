"""Counts the cold bytes that each consumer group reads, and decides which groups must slow down (RocketMQ's
ColdDataCgCtrService with its strategies).

Every five seconds the counters start again at zero. A group that reached its threshold since then is
controlled until the next start. The threshold is the one that an administrator set for the group, or an
adaptive one (`coldCtrStrategyEnable`), or `cgColdReadThreshold`. When all groups together reach
`globalColdReadThreshold`, every group that reads cold data is controlled.
"""
# pure: state and rules only; the caller passes the time

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from epochmq_protocol import topics as names

IDLE_MS = 60_000
"""A group that reads no cold data for so long is forgotten."""
GROUPS_MAX = 10_000
"""Groups that are counted, and groups with a threshold of their own; further ones are ignored."""
ADAPTIVE = "||adaptive"
PROMOTE, DECELERATE, DECELERATED_MAX = 1.5, 0.8, 3
HISTORY_MAX = 10
P_WEIGHT, I_WEIGHT, D_WEIGHT = 0.5, 0.3, 0.2

_SYSTEM_GROUPS = frozenset(
    [
        names.DEFAULT_CONSUMER_GROUP,
        names.TOOLS_CONSUMER_GROUP,
        names.SCHEDULE_CONSUMER_GROUP,
        names.FILTERSRV_CONSUMER_GROUP,
        names.MONITOR_CONSUMER_GROUP,
        names.SELF_TEST_CONSUMER_GROUP,
        names.ONS_HTTP_PROXY_GROUP,
        names.CID_ONSAPI_PERMISSION_GROUP,
        names.CID_ONSAPI_OWNER_GROUP,
        names.CID_ONSAPI_PULL_GROUP,
        names.CID_SYS_RMQ_TRANS,
    ]
)


class ColdSettings(Protocol):
    """The broker settings that the control reads; `BrokerConfig` has them under the same names."""

    @property
    def cold_data_flow_control_enable(self) -> bool: ...
    @property
    def cold_ctr_strategy_enable(self) -> bool: ...
    @property
    def cg_cold_read_threshold(self) -> int: ...
    @property
    def global_cold_read_threshold(self) -> int: ...


class ColdReadCounter(Struct, rename="camel"):
    """What one group read: bytes since the counters last started, and times in epoch ms (AccAndTimeStamp,
    with the names of its JSON)."""

    cold_acc: int
    create_time_mills: int
    last_cold_read_time_mills: int


class ColdDataFlowControl:
    """The counters and thresholds of one broker. `active`: whether some group may have to slow down, so that
    pulls need a check."""

    def __init__(self, settings: ColdSettings, *, adapts_by_pid: bool) -> None:
        """`adapts_by_pid`: usePIDColdCtrStrategy."""
        self.settings = settings
        self.active = False
        self.global_acc = 0
        self.thresholds: dict[str, int] = {}
        self.groups: dict[str, ColdReadCounter] = {}
        self._pid = _PidHistory(int(settings.global_cold_read_threshold * 0.8)) if adapts_by_pid else None

    def configure(self, settings: ColdSettings) -> None:
        """Applies changed settings."""
        self.settings = settings
        self._update_active()

    def set_threshold(self, group: str, threshold: int) -> None:
        """Sets the bytes that a group may read in five seconds."""
        if group in self.thresholds or len(self.thresholds) < GROUPS_MAX:
            self.thresholds[group] = threshold

    def remove_threshold(self, group: str) -> None:
        """Removes a group's own threshold, if it has one."""
        self.thresholds.pop(group, None)

    def count(self, group: str, size: int, now_ms: int) -> None:
        """Counts cold bytes that a group read."""
        if size <= 0:
            return
        self.global_acc += size
        reads = self.groups.get(group)
        if reads is not None:
            reads.cold_acc += size
            reads.last_cold_read_time_mills = now_ms
        elif len(self.groups) < GROUPS_MAX:
            self.groups[group] = ColdReadCounter(size, now_ms, now_ms)
            self._update_active()

    def is_controlled(self, group: str) -> bool:
        """Whether a group has read as much cold data as it may."""
        if not self.active or is_system_group(group):
            return False
        reads = self.groups.get(group)
        if reads is None:
            return False
        return (
            reads.cold_acc >= self._threshold(group)
            or self.global_acc >= self.settings.global_cold_read_threshold
        )

    def start_period(self, now_ms: int) -> None:
        """Restarts all counters, adapts thresholds, and forgets groups that no longer read cold data."""
        adapts = self.settings.cold_ctr_strategy_enable
        if adapts and self._pid is not None:
            self._pid.collect(self.global_acc)
        for group, reads in list(self.groups.items()):
            if now_ms >= reads.last_cold_read_time_mills + IDLE_MS:
                if adapts:
                    self.thresholds.pop(group + ADAPTIVE, None)
                del self.groups[group]
            elif (
                reads.cold_acc >= self._threshold(group)
                and adapts
                and not self._is_global()
                and not self._has_own_threshold(group)
                and (self._pid is None or self._pid.factor() > 0)
            ):
                self.set_threshold(group + ADAPTIVE, int(self._threshold(group) * PROMOTE))
            reads.cold_acc = 0
        if adapts:
            self._decelerate()
        self.global_acc = 0
        if not adapts:
            for key in [key for key in self.thresholds if key.endswith(ADAPTIVE)]:
                del self.thresholds[key]
        self._update_active()

    def info(self) -> dict[str, object]:
        """The document of GET_COLD_DATA_FLOW_CTR_INFO."""
        return {
            "runtimeTable": self.groups,
            "configTable": self.thresholds,
            "cgColdReadThreshold": self.settings.cg_cold_read_threshold,
            "globalColdReadThreshold": self.settings.global_cold_read_threshold,
            "globalAcc": self.global_acc,
        }

    def _update_active(self) -> None:
        self.active = self.settings.cold_data_flow_control_enable and bool(self.groups)

    def _is_global(self) -> bool:
        return self.global_acc > self.settings.global_cold_read_threshold

    def _has_own_threshold(self, key: str) -> bool:
        return _own_key(key) in self.thresholds

    def _threshold(self, key: str) -> int:
        """The bytes that a group, or the group of an adaptive key, may read in a period."""
        own = self.thresholds.get(_own_key(key))
        if own is not None:
            return own
        adaptive = None
        if self.settings.cold_ctr_strategy_enable:
            adaptive = self.thresholds.get(key if key.endswith(ADAPTIVE) else key + ADAPTIVE)
        return self.settings.cg_cold_read_threshold if adaptive is None else adaptive

    def _decelerate(self) -> None:
        """Lowers the greatest adaptive thresholds, not below `cgColdReadThreshold`."""
        applies = self._is_global() if self._pid is None else self._pid.factor() < 0
        left = DECELERATED_MAX
        for key in sorted(self.thresholds, key=lambda key: self.thresholds[key], reverse=True):
            if not left:
                break
            if self._has_own_threshold(key):
                continue
            left -= 1
            if applies:
                lowered = int(self._threshold(key) * DECELERATE)
                self.thresholds[key] = max(lowered, self.settings.cg_cold_read_threshold)


class _PidHistory:
    """How far the cold bytes of all groups were below what is expected, in the last ten periods
    (PIDAdaptiveColdCtrStrategy)."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._errors: list[int] = []

    def collect(self, total: int) -> None:
        self._errors = [*self._errors, self._expected - total][-HISTORY_MAX:]

    def factor(self) -> float:
        """Positive: groups may read more. Negative: they must read less."""
        errors = self._errors
        if len(errors) < HISTORY_MAX:
            return 0.0
        return P_WEIGHT * errors[-1] + I_WEIGHT * sum(errors) + D_WEIGHT * (errors[-1] - errors[-2])


def is_system_group(group: str) -> bool:
    """Whether the control never applies to a group (MixAll.isSysConsumerGroupPullMessage)."""
    return group in _SYSTEM_GROUPS or group.startswith(names.CID_RMQ_SYS_PREFIX)


def _own_key(key: str) -> str:
    """The key under which an administrator's threshold of a group is looked up. Java splits an adaptive key
    with a regular expression that matches the empty string, and so gets the group's first letter."""
    return key[:1] if key.endswith(ADAPTIVE) else key
