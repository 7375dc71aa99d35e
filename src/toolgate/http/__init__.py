"""Serve HTTP/1.1 and WebSockets: sockets, parsing, limits, deadlines and routing. Must not know what handlers do."""
