"""`toolgate chat`: talk with a model in a terminal or a pipe, over the Responses API of a running server."""
