-- What the outbox holds has another encoding of instances.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- What an instance has besides its addresses and security groups, as JSON. NULL: nothing.
ALTER TABLE instances ADD COLUMN options TEXT;

-- The addresses and prefixes in `options`, to be found by their value. `kind` is secondary, prefix or pair; `family` is 4
-- or 6. `first` and `last` are the lowest and the highest address as numbers of 16 bytes in network byte order.
-- `held` is 1 in the pair of the instance that holds the address, and `mac` the MAC address of a pair that has one, else 0.
CREATE TABLE further_addresses (
    vpc INTEGER NOT NULL,
    family INTEGER NOT NULL,
    first BLOB NOT NULL,
    last BLOB NOT NULL,
    kind TEXT NOT NULL,
    instance INTEGER NOT NULL,
    held INTEGER NOT NULL,
    mac INTEGER NOT NULL,
    PRIMARY KEY (vpc, family, first, last, kind, instance)
) STRICT;
CREATE INDEX further_addresses_instance ON further_addresses (instance);
CREATE UNIQUE INDEX further_addresses_owned ON further_addresses (vpc, family, first, last) WHERE kind <> 'pair';
CREATE UNIQUE INDEX further_addresses_held ON further_addresses (vpc, family, first) WHERE held = 1;
CREATE INDEX further_addresses_mac ON further_addresses (vpc, mac) WHERE mac <> 0;
