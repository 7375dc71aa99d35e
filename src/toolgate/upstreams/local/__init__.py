"""The local model: a small LLM on this machine's CPU that needs no key and, once its weights are downloaded, no network.

`model.py` is the model that the gateway asks; `engine.py` runs in a process of its own; `weights_catalog.py` knows where the
weights come from. Nothing here loads the runtime into the gateway's process.
"""
