"""Serves the requests of the other replicas of a replica group, and of its controllers
(AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.modes.availability_mode import AvailabilityMode
from epochmq_broker.replication.ha.checksum_comparison import LogRange
from epochmq_broker.replication.ha.log_checksums import ChecksumsBusyError
from epochmq_broker.replication.ha.service import HARole, HAService
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_controller import ExchangeHAInfoRequestHeader, ExchangeHAInfoResponseHeader
from epochmq_protocol.replica_control import LogChecksumsHeader, ReplicaControlCode
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.write_promise import WritePromiseRequestHeader


class ReplicaGroupProcessor:
    """Serves them on the main port and on the VIP port."""

    def __init__(self, live: LiveConfig, ha: HAService, mode: AvailabilityMode) -> None:
        self._live = live
        self._ha = ha
        self._mode = mode

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.ha_info,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
            ReplicaControlCode.LOG_CHECKSUMS: self.log_checksums,
            ReplicaControlCode.WRITE_PROMISE: self.write_promise,
        }

    def write_promise(self, connection: RemotingConnection, command: Command) -> Command:
        """A replica promises its master not to become master for a while."""
        answer = self._mode.write_promised(WritePromiseRequestHeader.decode(command.ext))
        return response(command, ResponseCode.SUCCESS, header=answer)

    async def log_checksums(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns checksums of a range of the master's log, with which a replica compares its own."""
        header = LogChecksumsHeader.decode(command.ext)
        wanted = LogRange(header.start_offset, header.end_offset, header.chunk_bytes)
        if not wanted.is_reasonable:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{wanted}: the range or its number of chunks is out of bounds"
            )
        self._require_epoch(header.epoch)
        log = self._ha.store.log
        log_start = max(log.min_offset, 0)
        response_header = LogChecksumsHeader(epoch=header.epoch, min_offset=log_start)
        if wanted.start < log_start:
            return response(command, ResponseCode.SUCCESS, header=response_header)
        try:
            body = await self._ha.checksums.of(wanted)
        except ChecksumsBusyError:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "other replicas compare their logs") from None
        except (OSError, ValueError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{wanted}: {error}") from None
        self._require_epoch(header.epoch)  # otherwise the log may have been truncated in the meantime
        return response(command, ResponseCode.SUCCESS, header=response_header, body=body)

    def _require_epoch(self, epoch: int) -> None:
        last = self._ha.epochs.epochs.last_epoch
        if self._ha.role is not HARole.MASTER or last != epoch:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"this broker is not the master of epoch {epoch}")

    def ha_info(self, connection: RemotingConnection, command: Command) -> Command:
        """906: a master returns the address at which it serves replicas. A request with such an address comes
        from a returning master before it goes online (`acting.pre_online`): this replica follows it. With a
        controller it does not, because the controller names the master."""
        config = self._live.current
        header = ExchangeHAInfoRequestHeader.decode(command.ext)
        if header.master_ha_address is not None:
            self._mode.master_announced(header)
            return response(command, ResponseCode.SUCCESS, header=ExchangeHAInfoResponseHeader())
        if self._ha.role is not HARole.MASTER:
            return response(command, ResponseCode.SUCCESS, header=ExchangeHAInfoResponseHeader())
        answer = ExchangeHAInfoResponseHeader(
            master_ha_address=config.ha_server_addr,
            master_flush_offset=self._ha.store.end_at_load,
            master_address=config.broker_addr,
        )
        return response(command, ResponseCode.SUCCESS, header=answer)

    def role_changed(self, connection: RemotingConnection, command: Command) -> Command:
        """1008: a controller notifies the broker of the group's master."""
        self._mode.role_notified(command)
        return response(command, ResponseCode.SUCCESS)

    def unverified_handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler of requests whose sender is not known. Controllers do not sign their
        notifications; this broker then asks them for the master itself."""
        return {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_may_have_changed}

    def role_may_have_changed(self, connection: RemotingConnection, command: Command) -> Command:
        """1008 without a signature: makes the broker ask its controllers."""
        self._mode.role_notified(command, verified=False)
        return response(command, ResponseCode.SUCCESS)
