"""Values only: messages, requests, events and failures. Knows no wire format and does no I/O."""
