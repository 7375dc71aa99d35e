"""What the author of a Python tool writes against, and what is made of it; `toolgate.lm` is its public face."""
