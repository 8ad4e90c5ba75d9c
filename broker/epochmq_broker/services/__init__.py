"""What a broker does with stored messages: delays, timers, transactions, POP, compaction, long polling, cold
reads.
It may use `writing` and all below.
It must not know why it runs: membership starts and stops the services that only a master runs."""
