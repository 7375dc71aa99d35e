"""The server's tools: their definitions, where they come from, which are offered, and how calls of them are run."""
