"""Use the server's tools in requests: prepare a run with them, restore its history, make it durable."""
