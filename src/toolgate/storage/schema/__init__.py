"""The tables, as numbered steps; see `toolgate.storage.migrations`."""
