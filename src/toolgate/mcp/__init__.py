"""The Model Context Protocol: its messages, a client for MCP servers and a server for MCP clients."""
