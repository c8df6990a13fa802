-- Written for SQLite; for PostgreSQL, INTEGER reads BIGINT, BLOB reads BYTEA,
-- STRICT is left out, and comments inside index definitions are taken in.

CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    database_id INTEGER NOT NULL,
    -- Revision of the last commit. Updating it is what serialises writers.
    revision INTEGER NOT NULL,
    -- The next id of any kind.
    next_id INTEGER NOT NULL,
    -- Where the search for a VNI never used goes on.
    next_vni INTEGER NOT NULL,
    -- Outbox rows up to this revision are gone.
    compacted INTEGER NOT NULL
) STRICT;

-- Written to find out whether anything can be.
CREATE TABLE probe (id INTEGER PRIMARY KEY, written INTEGER NOT NULL) STRICT;
INSERT INTO probe (id, written) VALUES (1, 0);

CREATE TABLE tenants (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    revision INTEGER NOT NULL
) STRICT;

CREATE TABLE clusters (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    vips TEXT NOT NULL,
    revision INTEGER NOT NULL
) STRICT;

CREATE TABLE gateways (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    cluster INTEGER NOT NULL REFERENCES clusters (id),
    vtep4 TEXT,
    vtep6 TEXT,
    revision INTEGER NOT NULL
) STRICT;
CREATE INDEX gateways_cluster ON gateways (cluster);

CREATE TABLE hosts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    vtep TEXT NOT NULL,
    agent INTEGER NOT NULL,
    revision INTEGER NOT NULL
) STRICT;

-- Who has which address of the underlay: hosts, gateways, clusters.
CREATE TABLE underlay (
    address TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    owner INTEGER NOT NULL,
    owner_name TEXT NOT NULL
) STRICT;
CREATE INDEX underlay_owner ON underlay (owner);

CREATE TABLE vpcs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    tenant INTEGER NOT NULL REFERENCES tenants (id),
    vni INTEGER NOT NULL UNIQUE,
    cluster INTEGER NOT NULL REFERENCES clusters (id),
    mtu INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (tenant, name)
) STRICT;
CREATE INDEX vpcs_cluster ON vpcs (cluster);

-- next*: all addresses from here on were never allocated. low*: all addresses
-- before here are in use.
CREATE TABLE subnets (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    vpc INTEGER NOT NULL REFERENCES vpcs (id),
    ipv4 TEXT,
    ipv6 TEXT,
    dns TEXT NOT NULL,
    revision INTEGER NOT NULL,
    next4 BLOB,
    low4 BLOB,
    next6 BLOB,
    low6 BLOB,
    UNIQUE (vpc, name),
    UNIQUE (vpc, ipv4),
    UNIQUE (vpc, ipv6)
) STRICT;

-- No foreign keys here: each would cost two searches an instance. The single
-- writer checks them, and refuses to remove what an instance uses.
-- derived: 1 the MAC is made from the id, 2 the IPv6 address from the MAC;
-- derived ones are unique as ids and MACs are, and need no index of their own.
CREATE TABLE instances (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    vpc INTEGER NOT NULL,
    subnet INTEGER NOT NULL,
    host INTEGER NOT NULL,
    mac INTEGER NOT NULL,
    ipv4 INTEGER,
    ipv6 BLOB,
    revision INTEGER NOT NULL,
    derived INTEGER NOT NULL
) STRICT;
-- In this order, a name is found with and without its VPC.
CREATE UNIQUE INDEX instances_name ON instances (name, vpc);
CREATE UNIQUE INDEX instances_ipv4 ON instances (vpc, ipv4) WHERE ipv4 IS NOT NULL;
CREATE UNIQUE INDEX instances_mac ON instances (vpc, mac) WHERE derived IN (0, 2);
CREATE UNIQUE INDEX instances_ipv6 ON instances (vpc, ipv6) WHERE ipv6 IS NOT NULL AND derived IN (0, 1);
CREATE INDEX instances_host ON instances (host/*, id*/);
CREATE INDEX instances_vpc ON instances (vpc/*, id*/);

CREATE TABLE route_tables (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    vpc INTEGER NOT NULL REFERENCES vpcs (id),
    revision INTEGER NOT NULL,
    UNIQUE (vpc, name)
) STRICT;

CREATE TABLE peerings (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    tenant INTEGER NOT NULL REFERENCES tenants (id),
    a INTEGER NOT NULL REFERENCES vpcs (id),
    b INTEGER NOT NULL REFERENCES vpcs (id),
    revision INTEGER NOT NULL,
    UNIQUE (tenant, name),
    UNIQUE (a, b)
) STRICT;
CREATE INDEX peerings_b ON peerings (b);

CREATE TABLE routes (
    id INTEGER PRIMARY KEY,
    route_table INTEGER NOT NULL REFERENCES route_tables (id),
    prefix TEXT NOT NULL,
    peering INTEGER REFERENCES peerings (id),
    revision INTEGER NOT NULL,
    UNIQUE (route_table, prefix)
) STRICT;
CREATE INDEX routes_peering ON routes (peering);

CREATE TABLE outbox (
    revision INTEGER NOT NULL,
    part INTEGER NOT NULL,
    last INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (revision, part)
) STRICT;

CREATE TABLE node_states (
    kind TEXT NOT NULL,
    node INTEGER NOT NULL,
    acked INTEGER NOT NULL,
    last_seen_ms INTEGER NOT NULL,
    failures TEXT NOT NULL,
    PRIMARY KEY (kind, node)
) STRICT;

CREATE TABLE enrolment_tokens (
    digest BLOB PRIMARY KEY,
    kind TEXT NOT NULL,
    node INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE certificate_authority (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    certificate TEXT NOT NULL,
    private_key TEXT NOT NULL
) STRICT;
