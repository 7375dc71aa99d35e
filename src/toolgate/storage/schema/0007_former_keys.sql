-- The secret that a key had before it was rotated, by its digest, and until when it opens the same.

ALTER TABLE api_keys ADD COLUMN former TEXT;
ALTER TABLE api_keys ADD COLUMN former_until INTEGER;
