-- What the outbox holds has another encoding of EIPs.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- 1: the addresses of the EIP, which is an IPv6 prefix, are mapped by RFC 6296.
ALTER TABLE eips ADD COLUMN nptv6 INTEGER NOT NULL DEFAULT 0;
