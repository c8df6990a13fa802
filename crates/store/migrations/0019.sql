-- What the outbox holds has another encoding of NAT gateways.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- `endpoint-independent` or `endpoint-dependent`.
ALTER TABLE nat_gateways ADD COLUMN mapping TEXT NOT NULL DEFAULT 'endpoint-independent';
