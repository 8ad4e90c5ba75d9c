"""Runs a controller: one peer of a Raft group that decides for replica groups and elects their masters.

- `config`: its settings. `controller`: the Raft peer, and the state machine that it drives.
- `processor` and `lease_renewals`: request codes. `notifier`: notifications of brokers. `admin_api`: the
  local socket.
- `server`: a controller with its port. `main`: the process. `members_command`: the command for its members.
"""
