"""A new slave without controllers begins with the last file of its master's log, and acknowledges it. A slave
that may act for its master begins with the first one."""

from __future__ import annotations

from pathlib import Path

from tests.unit.broker.replication.ha.broker_node import LOG_FILE, BrokerNode, until


async def test_a_slave_that_begins_with_the_last_file_acknowledges(tmp_path: Path) -> None:
    master = await BrokerNode(tmp_path / "0", 0, controlled=False).open()
    slave_settings = {"brokerRole": "SLAVE", "brokerId": "1"}
    slave = await BrokerNode(tmp_path / "1", 1, slave_settings, controlled=False).open()
    try:
        assert master.put(300) > LOG_FILE
        assert slave.ha.client is not None
        slave.ha.client.follow(master.address)
        await until(lambda: slave.end == master.end, "the slave has the end of the log")
        assert slave.store.min_phy_offset > 0
        assert master.ha.server is not None
        (connection,) = master.ha.server.transferring
        await until(lambda: connection.ack_offset == master.end, "the slave acknowledges", 20)
    finally:
        await slave.close()
        await master.close()


async def test_a_slave_that_may_act_for_its_master_copies_the_whole_log(tmp_path: Path) -> None:
    acting = {"enableSlaveActingMaster": "true", "slaveReadEnable": "true"}
    master = await BrokerNode(tmp_path / "0", 0, acting, controlled=False).open()
    slave_settings = {"brokerRole": "SLAVE", "brokerId": "1", **acting}
    slave = await BrokerNode(tmp_path / "1", 1, slave_settings, controlled=False).open()
    try:
        assert master.put(300) > LOG_FILE
        assert slave.ha.client is not None
        slave.ha.client.follow(master.address)
        await until(lambda: slave.end == master.end, "the slave has the end of the log")
        assert slave.store.min_phy_offset == 0
    finally:
        await slave.close()
        await master.close()
