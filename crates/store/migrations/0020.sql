-- What the outbox holds has another encoding of instances.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- What instances of a class may use of their hosts' network. `policy` is JSON.
CREATE TABLE network_classes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    policy TEXT NOT NULL,
    revision INTEGER NOT NULL
) STRICT;

-- The class of an instance; NULL: none.
ALTER TABLE instances ADD COLUMN network_class INTEGER REFERENCES network_classes (id);
CREATE INDEX instances_network_class ON instances (network_class, vpc/*, id*/) WHERE network_class IS NOT NULL;
