"""Child processes on the event loop. Knows processes and pipes, and nothing of what is written to them."""
