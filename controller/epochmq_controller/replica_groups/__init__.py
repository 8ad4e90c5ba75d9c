"""Decides for replica groups: who is master, who is in sync, and who may write until when. A pure state
machine that committed entries of the Raft log drive.

- `events`: the entries of the Raft log, in Java's bytes. `replicated_state`: the groups that they produce.
  `snapshot`: these groups as bytes.
- `election_policy`: which replica to elect. `rules`: what each request may change, with Java's codes and
  remarks. `requests`: the requests.
- `incarnations`: which process a broker id belongs to. `group_adoption`: how a forgotten group is rebuilt.
- `leases`: who may write until when. `heartbeats`: which replicas are alive, in this controller's memory
  only. `offset_confirmed_by_all`: which log has lost messages.
- `state_machine`, with `controller_tables` and `request_queues`: what a controller does with all of it.
"""
