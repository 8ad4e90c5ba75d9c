"""The one way by which messages enter the store, and the way by which an acting master's messages leave for
other groups (`escape`).
It may use the tables and all below.
It must not know who sends: a client, a timer or a transaction."""
