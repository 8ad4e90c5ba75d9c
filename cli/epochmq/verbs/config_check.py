"""Checks `spec.config` with the configuration parsers of broker and controller before any pod is started or
restarted: running pods are not stopped for a configuration that they would reject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from epochmq.exits import UsageError, print_error
from epochmq_operator.pod_rendering import setting_text
from epochmq_operator.resources import BrokerGroup, ControllerGroup, GroupResource, Resources, show_value
from epochmq_protocol.admin_api.common_operations import SECRET_KEY_WORDS
from epochmq_protocol.errors import ConfigError

QUORUM_KEYS = {
    "controllerDLegerGroup": "g",
    "controllerDLegerPeers": "n0-127.0.0.1:9878",
    "controllerDLegerSelfId": "n0",
}
"""Keys that the operator sets, without which the configuration of a controller does not load."""

CONTROLLER_MODE_KEYS = {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878"}
"""Keys that the operator sets for a broker in controller mode, and without which it does not load."""

DLEDGER_KEYS = {
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "g",
    "dLegerPeers": "n0-127.0.0.1:40911",
    "dLegerSelfId": "n0",
}
"""Keys that the operator sets for a broker in the mode DLedger, and without which it does not load."""

Warnings = Sequence[str]


def check_config(resources: Resources) -> None:
    """Raises UsageError with a line for each value that the pods would reject. For unknown keys there is only
    a warning, because the pods ignore them, too."""
    faults: list[str] = []
    for group in resources.groups:
        loader = _controller_loader(group) if isinstance(group, ControllerGroup) else _broker_loader(group)
        faults += _faults(group, loader, resources.places)
    if faults:
        raise UsageError("these resources cannot be run:\n" + "\n".join(faults))


def _broker_loader(group: BrokerGroup) -> Callable[[Mapping[str, str]], Warnings]:
    from epochmq_broker.config.broker_config import from_properties

    base = CONTROLLER_MODE_KEYS if group.controlled_by is not None else {}
    if group.is_dledger:
        base = DLEDGER_KEYS
    return lambda text: from_properties(base | dict(text)).warnings


def _controller_loader(group: ControllerGroup) -> Callable[[Mapping[str, str]], Warnings]:
    if group.spec.nameserver.embedded:
        from epochmq_controller.nameserver.main import load as load_both

        base = QUORUM_KEYS | {"enableControllerInNamesrv": "true"}
        return lambda text: load_both(None, base | dict(text)).warnings
    from epochmq_controller.controller.main import load

    return lambda text: load(None, QUORUM_KEYS | dict(text)).warnings


def _faults(
    group: GroupResource,
    load: Callable[[Mapping[str, str]], Warnings],
    places: Mapping[tuple[str, ...], str],
) -> list[str]:
    text = {key: setting_text(value) for key, value in group.spec.config.items()}
    faults: dict[str, str] = {}

    def note(error: ConfigError) -> None:
        is_secret = any(word in error.key.lower() for word in SECRET_KEY_WORDS)
        value = error.value if is_secret else group.spec.config.get(error.key, error.value)
        place = places.get((group.kind, group.metadata.namespace, group.name, error.key))
        subject = f"{group.kind} {group.name}"
        where = f"{subject if place is None else f'{place} ({subject})'}: spec.config.{error.key}"
        faults.setdefault(error.key, f"{where}: {show_value(value)}, expected {error.expected}")

    try:
        warnings = load(text)
    except ConfigError as error:
        # Each key alone, so that every fault is listed. A key that needs another one is no fault of its own.
        for key, value in text.items():
            try:
                load({key: value})
            except ConfigError as alone:
                if alone.key == key:
                    note(alone)
        note(error)
    else:
        for warning in warnings:
            print_error(f"{group.name}: spec.config: {warning}")
    return list(faults.values())
