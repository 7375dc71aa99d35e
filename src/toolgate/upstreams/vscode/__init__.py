"""Models that an editor lends over the bridge: their routes, questions to them, and their answers."""
