-- Deleted objects whose entries nodes may still have. `nodes` lists the ids of the nodes that are awaited, in order,
-- separated by commas.
CREATE TABLE removals (
    revision INTEGER PRIMARY KEY,
    deleted_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    object INTEGER NOT NULL,
    name TEXT NOT NULL,
    nodes TEXT NOT NULL
) STRICT;
CREATE INDEX removals_nodes ON removals (nodes, revision);
CREATE INDEX removals_object ON removals (object);

-- What they had and nothing else may have until then. `kind` is ipv4, ipv6 (`scope` is the VPC), vni or underlay
-- (`scope` is 0). Numbers are in network byte order.
CREATE TABLE held (
    kind TEXT NOT NULL,
    scope INTEGER NOT NULL,
    value BLOB NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (kind, scope, value)
) STRICT;
CREATE INDEX held_revision ON held (revision);
