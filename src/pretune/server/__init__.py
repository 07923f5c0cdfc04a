"""Server: a batching engine for several models, and its HTTP interface (`pretune serve`)."""
