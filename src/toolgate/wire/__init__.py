"""Bytes to frames and back, and the reading of untrusted JSON. Knows no dialect."""
