"""The sample tools: useful, safe, and the first thing a newcomer sees."""
