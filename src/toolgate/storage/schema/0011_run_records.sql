-- Runs as people look at them: one row a run, and one for each step and each call of it, without their content.
-- `run_requests` holds what a fork needs of a stored response's request, besides its input.

CREATE TABLE run_records (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('background', 'foreground')),
    state TEXT NOT NULL
        CHECK (state IN ('queued', 'running', 'waiting', 'completed', 'incomplete', 'failed', 'cancelled', 'parked')),
    model TEXT NOT NULL,
    created REAL NOT NULL,
    started REAL,
    ended REAL,
    steps INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    tools TEXT,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost REAL NOT NULL,
    error TEXT,
    response TEXT,
    forked_run TEXT,
    forked_step INTEGER,
    node TEXT NOT NULL,
    alive REAL NOT NULL,
    cancel INTEGER NOT NULL
);
CREATE INDEX run_records_by_time ON run_records (created);
CREATE INDEX run_records_by_owner ON run_records (owner, created);
CREATE INDEX run_records_by_state ON run_records (state, created);
CREATE INDEX run_records_by_model ON run_records (model, created);
CREATE INDEX run_records_by_response ON run_records (response);
CREATE TABLE run_entries (
    run TEXT NOT NULL,
    place INTEGER NOT NULL,
    owner TEXT NOT NULL,
    entry TEXT NOT NULL,
    PRIMARY KEY (run, place)
);
CREATE TABLE run_requests (
    response TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    request BLOB NOT NULL
);
