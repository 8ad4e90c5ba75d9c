"""Looks up the nameservers behind one DNS name (fetchNameSrvAddrByDnsLookup), so that nameservers can be
added and removed while the broker runs."""

from __future__ import annotations

import asyncio

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.membership.dns_lookup import follow_name


class NameserverLookup:
    """Replaces the addresses in `live.nameservers` while the name in namesrvAddr has other ones."""

    def __init__(self, live: LiveConfig) -> None:
        self._live = live
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to look the name up, if the configuration says so; needs a running loop."""
        self._live.on_change.append(self._reconfigured)
        self._begin(self._live.current)

    async def stop(self) -> None:
        """Ends the lookups."""
        if self._reconfigured in self._live.on_change:
            self._live.on_change.remove(self._reconfigured)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self, config: BrokerConfig) -> None:
        if config.fetch_name_srv_addr_by_dns_lookup and config.nameservers:
            follow = follow_name(
                config.nameservers[0],
                "nameservers",
                lambda: self._live.nameservers,
                self._live.set_nameservers,
                lambda: self._live.current.update_name_server_addr_period / 1000,
            )
            self._task = asyncio.create_task(follow, name="look up the nameservers")

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        followed = (before.namesrv_addr, before.fetch_name_srv_addr_by_dns_lookup)
        if followed == (after.namesrv_addr, after.fetch_name_srv_addr_by_dns_lookup):
            return
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._begin(after)
