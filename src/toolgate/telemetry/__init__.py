"""Write log lines and metrics for operators, without secrets. Knows conversations, no wire format and no config."""
