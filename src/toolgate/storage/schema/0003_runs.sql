-- Runs outlive their process: the node that has one says so here, and nowhere else.

CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    state TEXT NOT NULL
        CHECK (state IN ('queued', 'running', 'waiting', 'completed', 'incomplete', 'failed', 'cancelled', 'parked')),
    node TEXT NOT NULL,
    token INTEGER NOT NULL,
    lease REAL NOT NULL,
    attempts INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    cancel INTEGER NOT NULL,
    asked BLOB NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL
);
CREATE INDEX runs_by_state ON runs (state, lease);
CREATE INDEX runs_by_owner ON runs (owner, state);
DROP TABLE runners;
ALTER TABLE response_streams DROP COLUMN runner;
