-- Several machines share a database: the number of a process says nothing on another.

ALTER TABLE runners ADD COLUMN host TEXT NOT NULL DEFAULT '';
