"""The consensus core of a Raft peer: `RaftNode.step(input, now_ms)` takes one input and returns effects. It
does no I/O and has no clock and no randomness.

Modules, from the bottom up:

- `types`: settings, inputs and effects. `raft_log`: the log interface that the core uses.
- `member_state`: the state that all parts share: term, vote, role, leader, and how far the log is durable and
  committed. `membership`: the voters. `rejoin`: the state of a peer that has lost data.
- `election`: votes. `takeover`: leadership transfer to this peer. `follower`: applies a leader's pushes to
  the log. `snapshot_receiver`: receives a leader's snapshot.
- `leader_state`, `entry_pusher`, `membership_change`, `heartbeat_rounds`, `leader`: one term's leadership.
- `node`: passes each input to the part that handles it.

The core is safer than DLedger 0.3.1.2 (see docs/develop/dledger.md): a leader counts only entries of its own
term towards a commit (Raft §5.4.2), a peer acknowledges only durable entries, a committed entry is never
truncated, and a leader that learns of a newer term steps down.
"""
