"""Several processes that serve one address, and the one that keeps them.

The supervisor (`crew.py`) binds the address, starts the workers and replaces those that die; it serves nobody itself.
A worker (`worker.py`) is the same server as one that runs alone, and asks its supervisor (`foreman.py`) for what there
must be one of: counters of limits, sums of metrics, the model on this machine, and word of what the others have changed.
"""
