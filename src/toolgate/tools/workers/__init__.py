"""Tools in processes of their own: what hangs, crashes or eats memory there ends there."""
