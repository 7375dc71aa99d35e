"""Toolgate as an MCP server (spec: R8)."""
