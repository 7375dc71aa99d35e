-- Keys that were made while the server ran, by their digests, and how often any of them was changed.

CREATE TABLE api_keys (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    digest TEXT NOT NULL,
    shown TEXT NOT NULL,
    rights TEXT NOT NULL,
    created INTEGER NOT NULL,
    expires INTEGER,
    revoked INTEGER,
    last_used INTEGER
);
CREATE TABLE api_key_changes (
    one INTEGER NOT NULL PRIMARY KEY,
    number INTEGER NOT NULL
);
