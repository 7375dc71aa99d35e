"""Races between processes: real servers over one database, and clients that come at the same moment."""
