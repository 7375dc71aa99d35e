"""Emulate tool calling for models that only write text: plan the request, decode the answer."""
