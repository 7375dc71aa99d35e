"""Models that only write text: how tool calls are read from it and written into it; no I/O, no clock."""
