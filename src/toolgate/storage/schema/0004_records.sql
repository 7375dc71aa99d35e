-- Records of what clients do: chats, runs of tools and usage, and what finds those that were kept long enough.

CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    model TEXT NOT NULL,
    dialect TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    messages INTEGER NOT NULL,
    digest TEXT NOT NULL,
    system_digest TEXT NOT NULL,
    lasting INTEGER NOT NULL
);
CREATE INDEX chats_by_digest ON chats (owner, digest);
CREATE INDEX chats_by_owner ON chats (owner, created, id);
CREATE INDEX chats_by_time ON chats (updated);
CREATE TABLE chat_messages (
    chat TEXT NOT NULL,
    place INTEGER NOT NULL,
    role TEXT NOT NULL,
    content TEXT,
    content_json TEXT,
    tool_calls TEXT,
    tool_call_id TEXT,
    name TEXT,
    function_call TEXT,
    model TEXT,
    finish_reason TEXT,
    usage TEXT,
    request TEXT NOT NULL,
    created REAL NOT NULL,
    PRIMARY KEY (chat, place)
);
CREATE TABLE completions (
    id TEXT NOT NULL,
    owner TEXT NOT NULL,
    chat TEXT NOT NULL,
    place INTEGER NOT NULL,
    model TEXT NOT NULL,
    created REAL NOT NULL,
    metadata TEXT NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX completions_by_owner ON completions (owner, created, id);
CREATE INDEX completions_by_chat ON completions (chat);

CREATE TABLE tool_invocations (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    run TEXT NOT NULL,
    call TEXT NOT NULL,
    tool TEXT NOT NULL,
    source TEXT NOT NULL,
    started REAL NOT NULL,
    latency_ms REAL NOT NULL,
    outcome TEXT NOT NULL,
    digest TEXT NOT NULL,
    arguments TEXT
);
CREATE INDEX tool_invocations_by_time ON tool_invocations (started, id);
CREATE INDEX tool_invocations_by_owner ON tool_invocations (owner, started, id);

CREATE TABLE usage_sums (
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    requests INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    cost REAL NOT NULL,
    PRIMARY KEY (day, key, model)
);

CREATE INDEX responses_by_time ON responses (created);
CREATE INDEX responses_by_previous ON responses (previous);
CREATE INDEX items_by_response ON items (response);
CREATE INDEX conversations_by_time ON conversations (created);
