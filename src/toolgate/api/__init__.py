"""The HTTP API that clients call: a module per endpoint family. Knows requests and responses; it must not know sockets."""
