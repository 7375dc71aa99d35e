"""Translate between wire formats and the values of a conversation, one folder per dialect. Pure: no I/O, no clock."""
