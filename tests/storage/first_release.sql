-- A storage file as the first release left it: no versions, tables without rowid, and some rows.
CREATE TABLE IF NOT EXISTS items (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    response TEXT NOT NULL,
    PRIMARY KEY (id, owner)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    previous TEXT,
    created INTEGER NOT NULL,
    input BLOB NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS conversations (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created INTEGER NOT NULL,
    metadata BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS conversation_items (
    conversation TEXT NOT NULL,
    place INTEGER NOT NULL,
    id TEXT NOT NULL,
    item BLOB NOT NULL,
    PRIMARY KEY (conversation, place)
);
CREATE UNIQUE INDEX IF NOT EXISTS conversation_item_ids ON conversation_items (id, conversation);
CREATE TABLE IF NOT EXISTS runners (
    id TEXT PRIMARY KEY,
    process INTEGER NOT NULL,
    seen REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS response_streams (
    response TEXT PRIMARY KEY,
    runner TEXT NOT NULL,
    kept INTEGER NOT NULL,
    whole INTEGER NOT NULL DEFAULT 0,
    ended REAL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS response_events (
    response TEXT NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    frames BLOB NOT NULL,
    PRIMARY KEY (response, first)
);
CREATE TABLE IF NOT EXISTS rounds (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    created REAL NOT NULL,
    messages BLOB NOT NULL,
    started BLOB NOT NULL,
    PRIMARY KEY (owner, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rounds_by_time ON rounds (created);
CREATE TABLE IF NOT EXISTS approvals (
    id TEXT PRIMARY KEY,
    caller TEXT NOT NULL,
    session TEXT NOT NULL,
    run TEXT NOT NULL,
    call TEXT NOT NULL,
    tool TEXT NOT NULL,
    source TEXT NOT NULL,
    origin TEXT,
    arguments TEXT NOT NULL,
    digest TEXT NOT NULL,
    spec TEXT NOT NULL,
    policy TEXT NOT NULL,
    why TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    title TEXT,
    question TEXT,
    message TEXT,
    tainted INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'expired', 'consumed', 'out_of_scope')),
    answered_by TEXT,
    answered REAL,
    level TEXT,
    reason TEXT,
    edited TEXT,
    edited_digest TEXT,
    told TEXT
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS approvals_by_digest ON approvals (digest, state);
CREATE INDEX IF NOT EXISTS approvals_by_state ON approvals (state, expires);
CREATE INDEX IF NOT EXISTS approvals_by_run ON approvals (run, state);
CREATE INDEX IF NOT EXISTS approvals_by_tool ON approvals (caller, tool, state);
CREATE INDEX IF NOT EXISTS approvals_by_time ON approvals (created);
CREATE TABLE IF NOT EXISTS grants (
    id TEXT PRIMARY KEY,
    caller TEXT NOT NULL,
    tool TEXT NOT NULL,
    source TEXT NOT NULL,
    spec TEXT NOT NULL,
    level TEXT NOT NULL,
    place TEXT NOT NULL,
    granted_by TEXT NOT NULL,
    created REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS grants_by_tool ON grants (caller, tool);
CREATE TABLE IF NOT EXISTS idempotency (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    holder TEXT NOT NULL,
    leased_until REAL NOT NULL,
    created REAL NOT NULL,
    answer BLOB,
    PRIMARY KEY (owner, key)
);
CREATE INDEX IF NOT EXISTS idempotency_by_age ON idempotency (created);
CREATE TABLE IF NOT EXISTS peer_conversations (
    peer TEXT NOT NULL,
    conversation TEXT NOT NULL,
    owner TEXT NOT NULL,
    digest TEXT NOT NULL,
    used REAL NOT NULL,
    PRIMARY KEY (peer, conversation)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS peer_conversations_by_digest ON peer_conversations (peer, owner, digest, used);
CREATE INDEX IF NOT EXISTS peer_conversations_by_time ON peer_conversations (used);
CREATE TABLE IF NOT EXISTS pinned_sources (
    source TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS pins (
    source TEXT NOT NULL,
    tool TEXT NOT NULL,
    definition BLOB NOT NULL,
    PRIMARY KEY (source, tool)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS registrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    registration BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS spending (
    key TEXT NOT NULL,
    period TEXT NOT NULL,
    amount REAL NOT NULL,
    PRIMARY KEY (key, period)
) WITHOUT ROWID;

INSERT INTO responses VALUES ('resp_1', 'ann', NULL, 7, '[]', '{"output":[{"id":"msg_1"}]}');
INSERT INTO items VALUES ('msg_1', 'ann', 'resp_1');
INSERT INTO registrations (name, registration) VALUES ('tool', x'7b7d');
INSERT INTO rounds VALUES ('ann', 'k', 1.0, '[]', '["call_1"]');
INSERT INTO runners VALUES ('runner_1', 1, 1.0);
INSERT INTO response_streams VALUES ('resp_1', 'runner_1', 1, 0, NULL);
