"""Store rows in a database. Knows no dialect; bodies are JSON text that this package does not read."""
