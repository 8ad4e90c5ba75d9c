"""Every request that a broker serves: the ports, the gates that a request passes, and the processors.
It may use membership and all below.
It must not know how the broker was built, or of the admin API beside it."""
