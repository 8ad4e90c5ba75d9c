"""What the controller knows of replica groups: a state machine that the Raft log drives.

- `events`: what the log's entries say, in Java's bytes. `state`: what they make of the tables; no clock, no
  I/O.
- `policy`: whom to elect. `rules`: what each request may change, answered with Java's codes and remarks.
- `leases`: who may write until when. `heartbeats`: who is alive, in this controller's memory only.
"""
