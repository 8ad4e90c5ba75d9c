"""Asks the broker's and the controller's own configuration what they make of `spec.config`, before anything
is started or restarted for it: what runs is not given up for a file that no pod takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from epochmq.exits import UsageError, print_error
from epochmq_operator.pod_rendering import setting_text
from epochmq_operator.resources import BrokerGroup, ControllerGroup, GroupResource, Resources, show_value
from epochmq_protocol.errors import ConfigError

SOME_QUORUM = {
    "controllerDLegerGroup": "g",
    "controllerDLegerPeers": "n0-127.0.0.1:9878",
    "controllerDLegerSelfId": "n0",
}
"""The operator's own keys, without which no controller's configuration loads."""

UNDER_CONTROLLERS = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878"}
"""The same of a broker's."""

Warnings = Sequence[str]


def check(resources: Resources) -> None:
    """UsageError with a line for every value that the pods would refuse; keys that they do not know are only
    complained about, as they do."""
    faults: list[str] = []
    for group in resources.groups:
        faults += _faults(group, _controller(group) if isinstance(group, ControllerGroup) else _broker(group))
    if faults:
        raise UsageError("these resources cannot be run:\n" + "\n".join(faults))


def _broker(group: BrokerGroup) -> Callable[[Mapping[str, str]], Warnings]:
    from epochmq_broker.config import from_properties

    base = UNDER_CONTROLLERS if group.controlled_by is not None else {}
    return lambda text: from_properties(base | dict(text)).warnings


def _controller(group: ControllerGroup) -> Callable[[Mapping[str, str]], Warnings]:
    if group.spec.nameserver.embedded:
        from epochmq_controller.nameserver.main import load as load_both

        base = SOME_QUORUM | {"enableControllerInNamesrv": "true"}
        return lambda text: load_both(None, base | dict(text)).warnings
    from epochmq_controller.controller.main import load

    return lambda text: load(None, SOME_QUORUM | dict(text)).warnings


def _faults(group: GroupResource, load: Callable[[Mapping[str, str]], Warnings]) -> list[str]:
    text = {key: setting_text(value) for key, value in group.spec.config.items()}
    faults: dict[str, str] = {}
    # Each key alone, so that every one is named; then all together, for the rules between them.
    for one in [*({key: value} for key, value in text.items()), text]:
        try:
            warnings = load(one)
        except ConfigError as error:
            value = group.spec.config.get(error.key, error.value)
            where = f"{group.kind} {group.name}: spec.config.{error.key}"
            faults.setdefault(error.key, f"{where}: {show_value(value)}, expected {error.expected}")
        else:
            if one is text:
                for warning in warnings:
                    print_error(f"{group.name}: spec.config: {warning}")
    return list(faults.values())
