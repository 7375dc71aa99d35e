"""Define the values of a conversation: messages, requests, events and errors. Knows no wire format and does no I/O."""
