-- Whether a configuration with keys was ever in force: then one without keys does not open the server by itself.

CREATE TABLE key_demand (
    one INTEGER NOT NULL PRIMARY KEY
);
