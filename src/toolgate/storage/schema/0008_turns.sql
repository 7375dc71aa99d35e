-- What runs did that their clients do not see: each message once, under any number of keys; and how large things are.

CREATE TABLE turn_keys (
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    turn TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    secret BLOB,
    PRIMARY KEY (owner, key)
);
CREATE INDEX turn_keys_by_turn ON turn_keys (owner, turn);
CREATE INDEX turn_keys_by_time ON turn_keys (expires);
CREATE TABLE turn_parts (
    owner TEXT NOT NULL,
    turn TEXT NOT NULL,
    place INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    messages BLOB NOT NULL,
    started BLOB NOT NULL,
    PRIMARY KEY (owner, turn, place)
);
INSERT INTO turn_keys (owner, key, turn, created, expires) SELECT owner, key, key, created, created + 604800 FROM rounds;
INSERT INTO turn_parts (owner, turn, place, bytes, messages, started)
    SELECT owner, key, 0, length(messages), messages, started FROM rounds;
DROP TABLE rounds;

ALTER TABLE responses ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE responses SET bytes = length(input) + length(body);
ALTER TABLE conversation_items ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE conversation_items SET bytes = length(item);
