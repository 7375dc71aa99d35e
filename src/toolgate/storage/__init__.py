"""What is kept: rows in a database. Knows no dialect; bodies are JSON text that only their dialect reads."""
