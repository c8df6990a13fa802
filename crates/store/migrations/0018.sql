-- What the outbox holds has another encoding of NAT gateways.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- The prefix of IPv6 by which instances reach IPv4 addresses (NAT64); NULL: there is no NAT64.
ALTER TABLE nat_gateways ADD COLUMN nat64_prefix TEXT;
