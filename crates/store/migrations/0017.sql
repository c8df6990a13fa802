-- What the outbox holds has another encoding of peerings.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- The meters of the two sides of a peering, which belong to the same tenant.
ALTER TABLE peerings ADD COLUMN a_meter INTEGER REFERENCES meters (id);
CREATE INDEX peerings_a_meter ON peerings (a_meter);
ALTER TABLE peerings ADD COLUMN b_meter INTEGER REFERENCES meters (id);
CREATE INDEX peerings_b_meter ON peerings (b_meter);
