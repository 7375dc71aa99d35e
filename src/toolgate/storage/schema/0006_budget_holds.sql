-- What keys hold back of their budgets while their requests run.

CREATE TABLE budget_holds (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    amount REAL NOT NULL,
    expires REAL NOT NULL
);
CREATE INDEX budget_holds_by_key ON budget_holds (key);
