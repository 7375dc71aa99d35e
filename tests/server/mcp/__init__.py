"""Toolgate as an MCP server (R8)."""
