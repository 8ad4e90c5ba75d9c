"""The broker's place in its group: under controllers (`controlled`), with an acting master (`acting`), or on
a DLedger log (`dledger`); and its registration with the nameservers.
It may use replication, the services and all below.
It must not know of requests: it says what the broker may do, and requests ask."""
