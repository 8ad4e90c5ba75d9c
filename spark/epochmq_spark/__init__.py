"""The audit: Spark data sources over the directories of brokers, the checks over them, and the report."""
