-- A cluster's gateways say hello to each other as often as its operator wants.
ALTER TABLE clusters ADD COLUMN hello_ms INTEGER NOT NULL DEFAULT 4;

-- What the outbox holds is in the old model's words.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;
