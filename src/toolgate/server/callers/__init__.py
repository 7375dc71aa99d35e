"""Who calls, what they may do and use, and what became of what they sent twice."""
