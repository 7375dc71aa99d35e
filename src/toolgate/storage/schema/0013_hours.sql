-- Usage by the hour, requests that failed, and how long requests took: counts in buckets that grow by an eighth power of two.

ALTER TABLE usage_sums ADD COLUMN errors INTEGER NOT NULL DEFAULT 0;
CREATE TABLE usage_hours (
    hour TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    cost REAL NOT NULL,
    errors INTEGER NOT NULL,
    PRIMARY KEY (hour, key, model)
);
CREATE TABLE latency_counts (
    hour TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('total', 'first')),
    bucket INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    PRIMARY KEY (hour, key, model, kind, bucket)
);
