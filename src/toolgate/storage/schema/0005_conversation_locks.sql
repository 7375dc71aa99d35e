-- Who makes a response in which conversation, until when they say so again.

CREATE TABLE conversation_locks (
    conversation TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    expires REAL NOT NULL
);
