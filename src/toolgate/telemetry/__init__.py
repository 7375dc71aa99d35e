"""What operators see: log lines, metrics, and nothing that is secret. Knows conversations, no wire format and no config."""
