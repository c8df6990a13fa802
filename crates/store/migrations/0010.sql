-- What the outbox holds has another encoding of subnets.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- How instances get IPv6 addresses; NULL: the subnet has no IPv6 prefix. The instances of existing subnets derive theirs.
ALTER TABLE subnets ADD COLUMN ipv6_mode TEXT;
UPDATE subnets SET ipv6_mode = 'slaac' WHERE ipv6 IS NOT NULL;
