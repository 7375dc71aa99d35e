-- Records of requests that came close together, many in one row. `created` is when their five seconds began.

CREATE TABLE request_batches (
    id TEXT PRIMARY KEY,
    created INTEGER NOT NULL,
    owner TEXT NOT NULL,
    model TEXT NOT NULL,
    dialect TEXT NOT NULL,
    requests INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    packed BLOB NOT NULL
);
CREATE INDEX request_batches_by_time ON request_batches (created, owner, model, dialect, failed, requests);
