"""The broker, in rooms from bottom to top: auth, config, tables, writing, services, replication, membership,
and then requests beside admin. `broker` builds one from them, `main` runs it."""
