"""Split bytes into frames and decode untrusted JSON. Knows no dialect."""
