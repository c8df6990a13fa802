-- The secret from which all gateways hash the sessions of source NAT. 0 only until the migration has drawn it; it never changes.
ALTER TABLE meta ADD COLUMN nat_seed INTEGER NOT NULL DEFAULT 0;
