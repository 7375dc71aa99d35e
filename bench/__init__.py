"""Measures Toolgate beside nginx, LiteLLM and Portkey on one mock upstream; knows Toolgate only by its command line."""
