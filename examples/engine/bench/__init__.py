"""The bench of the engine recordings: load, client, step log, folders."""
