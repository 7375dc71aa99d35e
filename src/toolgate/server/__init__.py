"""The HTTP edge: one handler serves every dialect; only `build.py` names implementations."""
