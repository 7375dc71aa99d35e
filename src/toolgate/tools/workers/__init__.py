"""Run Python tools in worker processes, so that code that hangs, crashes or uses up memory harms only its process."""
