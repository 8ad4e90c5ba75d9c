"""The consensus core: `RaftNode.step(input, now_ms)` takes one input and returns effects. No I/O, no clock,
no randomness.

The rules, in the order in which a reader meets them:

- `types`: what goes in and what comes out; `log`: what the core asks of a log.
- `member`: the state every part shares: term, vote, role, leader, how far the log is safe.
- `election`: who leads. `follower`: what a leader's pushes do to our log. `leader`: how the log reaches the
  peers.
- `node`: the front door, which hands each input to its part.

Safety beyond DLedger 0.3.1.2 (see docs/develop/dledger.md): a leader commits only entries of its own term by
counting (Raft §5.4.2); nothing is acknowledged before it is durable; a committed entry is never truncated; a
leader that hears of a newer term steps down.
"""
