-- What the outbox holds has another encoding of instances.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- The live migration of an instance: its id, the target host, the key of its two hosts (32 bytes), and what happens to
-- sessions. All are NULL if the instance does not migrate.
ALTER TABLE instances ADD COLUMN migration INTEGER;
ALTER TABLE instances ADD COLUMN migrating_to INTEGER;
ALTER TABLE instances ADD COLUMN migration_key BLOB;
ALTER TABLE instances ADD COLUMN migration_sessions TEXT;

-- The same migrations, by host, with what their target hosts reported. `ended` is 1 for the last ones that were canceled,
-- so that a target host that has switched all the same is noticed; `refused` is 1 if that has happened. No foreign key leads to
-- `instances`, as for EIPs.
CREATE TABLE migrations (
    id INTEGER PRIMARY KEY,
    instance INTEGER NOT NULL,
    vpc INTEGER NOT NULL,
    source INTEGER NOT NULL,
    target INTEGER NOT NULL,
    status TEXT NOT NULL,
    sessions INTEGER NOT NULL,
    problem TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    ready_ms INTEGER,
    ended INTEGER NOT NULL,
    refused INTEGER NOT NULL
) STRICT;
CREATE INDEX migrations_instance ON migrations (instance);
CREATE INDEX migrations_source ON migrations (source, ended);
CREATE INDEX migrations_target ON migrations (target, ended);
CREATE INDEX migrations_vpc ON migrations (vpc, ended);
