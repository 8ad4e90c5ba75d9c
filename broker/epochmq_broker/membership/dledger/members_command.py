"""Implements `epochmq broker members`: shows the brokers of a DLedger group, and changes them online
(`epochmq_dledger.members_command`)."""

from __future__ import annotations

from epochmq_dledger.members_command import MembersCommand
from epochmq_protocol.transport.group_members import BROKERS

USAGE = """\
Usage: epochmq broker members ADDRESS [--add ID-HOST:PORT | --remove ID]

  Shows the members of the DLedger group with a peer at ADDRESS (host:port, as in dLegerPeers), or adds or
  removes one broker. A new broker must be running, with joinDLedgerGroup=true and with the present brokers
  and itself in dLegerPeers. Only one change at a time; all brokers must be EpochMQ's.
  The file of the members' secret, if they have one, is named by the environment variable
  EPOCHMQ_MEMBER_SECRET. EPOCHMQ_TLS_CONFIG names a tls.properties with keys tls.client.*: TLS is used then.
"""

COMMAND = MembersCommand("epochmq broker members", USAGE, BROKERS)
