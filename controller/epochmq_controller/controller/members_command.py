"""Implements `epochmq controller members`: shows the members of a quorum of controllers, and changes them
online (`epochmq_dledger.members_command`)."""

from __future__ import annotations

from epochmq_dledger.members_command import MembersCommand
from epochmq_protocol.transport.group_members import CONTROLLERS

USAGE = """\
Usage: epochmq controller members ADDRESS [--add ID-HOST:PORT | --remove ID]

  Shows the members of the quorum that the controller at ADDRESS (host:port) belongs to, or adds or removes
  one controller. A new controller must be running, with joinControllerGroup=true and with the present
  controllers and itself in controllerDLegerPeers. Only one change at a time; all controllers must be
  EpochMQ's. The file of the members' secret, if they have one, is named by the environment variable
  EPOCHMQ_MEMBER_SECRET. EPOCHMQ_TLS_CONFIG names a tls.properties with keys tls.client.*: TLS is used then.
"""

COMMAND = MembersCommand("epochmq controller members", USAGE, CONTROLLERS)
