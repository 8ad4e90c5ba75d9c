"""Chooses the mode of a broker. Nothing else in the broker asks which mode its settings name."""

from __future__ import annotations

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.membership.modes.acting import ActingMasterMode
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode
from epochmq_broker.membership.modes.controlled import ControlledMode
from epochmq_broker.membership.modes.dledger import DLedgerMode
from epochmq_broker.membership.modes.plain import PlainMode


def mode_of(config: BrokerConfig) -> type[AvailabilityMode]:
    """The mode that the settings name. Under controllers enableSlaveActingMaster only changes how many
    replicas a send waits for."""
    if config.enable_dledger_commit_log:
        return DLedgerMode
    if config.enable_controller_mode:
        return ControlledMode
    return ActingMasterMode if config.enable_slave_acting_master else PlainMode
