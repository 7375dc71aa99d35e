"""Notify waiting tasks that something has changed: in this process, across workers and across nodes."""
