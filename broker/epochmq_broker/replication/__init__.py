"""The copies of a master's log (`ha`) and of its tables (`slave_sync`) on its slaves.
It may use the services, whose progress it copies, and all below.
It must not know who decides which broker is the master."""
