"""What a store does while it runs: flushes, builds the index, expires, reports full disks and failed fsyncs,
and decides which messages readers can see.
It may use all rooms but `recovering`.
It must not know what the broker does with a report."""
