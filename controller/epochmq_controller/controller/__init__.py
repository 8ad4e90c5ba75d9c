"""The controller at work: one peer of a Raft group that keeps replica groups and elects their masters.

- `config`: its settings. `controller`: the Raft peer, the tables it drives, and how a request becomes events.
- `elections`: when masters are replaced, and who is told. `processor`: request codes to answers.
- `main`: the process.
"""
