-- Gateways on their way between clusters.

-- The second cluster whose entries a gateway on its way has, where it goes or, once it
-- has joined that one, where it was.
ALTER TABLE gateways ADD COLUMN other_cluster INTEGER REFERENCES clusters (id);
ALTER TABLE gateways ADD COLUMN joined INTEGER NOT NULL DEFAULT 0;
ALTER TABLE gateways ADD COLUMN move_id INTEGER NOT NULL DEFAULT 0;
CREATE INDEX gateways_other ON gateways (other_cluster);

-- What the outbox holds is in the old model's words.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;
