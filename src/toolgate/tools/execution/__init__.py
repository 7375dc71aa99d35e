"""The server's tools: which there are, who may use them, who is asked, and what is remembered."""
