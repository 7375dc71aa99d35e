"""Start, watch and kill child processes on the event loop. Knows processes and pipes, not what is written to them."""
