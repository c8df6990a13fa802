-- Clusters that nothing stops: places and homes of vIPs, keys, draining
-- gateways, VPCs on their way between clusters, events.

-- clusters.vips is now a list of PLACE=ADDRESS[@HOME]; src/schema.rs rewrites
-- what is there.
ALTER TABLE clusters ADD COLUMN plan_revision INTEGER NOT NULL DEFAULT 0;
UPDATE clusters SET plan_revision = revision;
ALTER TABLE gateways ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;

ALTER TABLE vpcs ADD COLUMN offload_kbps INTEGER;
ALTER TABLE vpcs ADD COLUMN moving_to INTEGER REFERENCES clusters (id);
ALTER TABLE vpcs ADD COLUMN switched INTEGER NOT NULL DEFAULT 0;
ALTER TABLE vpcs ADD COLUMN move_id INTEGER NOT NULL DEFAULT 0;
CREATE INDEX vpcs_moving ON vpcs (moving_to);

ALTER TABLE meta ADD COLUMN next_key INTEGER NOT NULL DEFAULT 1;
CREATE TABLE cluster_keys (
    id INTEGER PRIMARY KEY,
    cluster INTEGER NOT NULL REFERENCES clusters (id),
    secret BLOB NOT NULL,
    not_before_ms INTEGER NOT NULL,
    not_after_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX cluster_keys_cluster ON cluster_keys (cluster);

ALTER TABLE meta ADD COLUMN next_event INTEGER NOT NULL DEFAULT 1;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    time_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    details TEXT NOT NULL
) STRICT;
CREATE INDEX events_subject ON events (subject, id);

-- What the outbox holds is in the old model's words.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;
