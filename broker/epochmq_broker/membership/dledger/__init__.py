"""The broker whose commit log is a DLedger log (`enableDLegerCommitLog`)."""
