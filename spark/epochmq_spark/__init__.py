"""Spark data sources over brokers' directories, the audits over them, and their report."""
