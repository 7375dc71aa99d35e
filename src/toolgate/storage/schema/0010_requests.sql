-- One record a request, without its content. `failed` finds refused and broken requests among many good ones.

CREATE TABLE request_records (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created REAL NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    dialect TEXT NOT NULL,
    upstream TEXT NOT NULL,
    upstream_dialect TEXT NOT NULL,
    model TEXT NOT NULL,
    stream INTEGER NOT NULL,
    status INTEGER NOT NULL,
    finish_reason TEXT,
    code TEXT,
    error TEXT,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    cost REAL NOT NULL,
    first_token_ms REAL,
    total_ms REAL NOT NULL,
    tools TEXT,
    warnings TEXT,
    run TEXT
);
CREATE INDEX request_records_by_time ON request_records (created);
CREATE INDEX request_records_by_owner ON request_records (owner, created);
CREATE INDEX request_records_by_model ON request_records (model, created);
CREATE INDEX request_records_failed ON request_records (created) WHERE status >= 400;
