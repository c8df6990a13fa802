-- What the outbox holds has another encoding of instances.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- `tenants` are the ids of the tenants that may mount the service besides that of its VPC, separated by commas; with
-- `any_tenant` 1, all may. The seeds are those of rendezvous hashing.
CREATE TABLE services (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    vpc INTEGER NOT NULL REFERENCES vpcs (id),
    seed_high INTEGER NOT NULL,
    seed_low INTEGER NOT NULL,
    any_tenant INTEGER NOT NULL,
    tenants TEXT NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (vpc, name)
) STRICT;

-- Instances of the VPC of the service; `name` and `host` are those of the instance, which does not move while it is a member.
-- `evidence` is what was measured when `status` changed, at `since_ms`. No foreign key leads to `instances`, as for EIPs.
CREATE TABLE service_members (
    id INTEGER PRIMARY KEY,
    service INTEGER NOT NULL REFERENCES services (id),
    instance INTEGER NOT NULL,
    name TEXT NOT NULL,
    host INTEGER NOT NULL REFERENCES hosts (id),
    number INTEGER NOT NULL,
    mac INTEGER NOT NULL,
    status TEXT NOT NULL,
    draining INTEGER NOT NULL,
    evidence TEXT NOT NULL,
    since_ms INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (service, instance),
    UNIQUE (service, number)
) STRICT;
CREATE INDEX service_members_instance ON service_members (instance);
CREATE INDEX service_members_host ON service_members (host);

-- The addresses of a service in a subnet of a VPC. `further_addresses` has them again, with the kind `mount` and the id of
-- the mount as `instance`.
CREATE TABLE mounts (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    vpc INTEGER NOT NULL REFERENCES vpcs (id),
    subnet INTEGER NOT NULL REFERENCES subnets (id),
    service INTEGER NOT NULL REFERENCES services (id),
    ipv4 TEXT,
    ipv6 TEXT,
    identity INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (vpc, name),
    UNIQUE (vpc, service)
) STRICT;
CREATE INDEX mounts_subnet ON mounts (subnet);
CREATE INDEX mounts_service ON mounts (service);

-- The ports of members in VPCs that have a mount: one for each member and mount. Their ids are in the number space of
-- instances.
CREATE TABLE vnics (
    id INTEGER PRIMARY KEY,
    mount INTEGER NOT NULL,
    member INTEGER NOT NULL,
    service INTEGER NOT NULL,
    vpc INTEGER NOT NULL,
    host INTEGER NOT NULL
) STRICT;
CREATE INDEX vnics_mount ON vnics (mount);
CREATE INDEX vnics_member ON vnics (member);
CREATE INDEX vnics_service ON vnics (service);
CREATE INDEX vnics_vpc ON vnics (vpc, host);
CREATE INDEX vnics_host ON vnics (host);
