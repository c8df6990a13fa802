-- Pools of public addresses. `prefixes` and `reserved` are lists in ascending order, separated by commas.
CREATE TABLE public_pools (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    cluster INTEGER NOT NULL REFERENCES clusters (id),
    prefixes TEXT NOT NULL,
    reserved TEXT NOT NULL,
    revision INTEGER NOT NULL
) STRICT;
CREATE INDEX public_pools_cluster ON public_pools (cluster);

-- Public addresses of tenants. `cluster` is that of the pool, `family` is 4 or 6. `first` and `last` are the lowest and the
-- highest public address, `inside_first` and `inside_last` those of the VPC, as numbers of 16 bytes in network byte order.
-- `vpc` and what is inside are NULL if the EIP is not attached; then `instance` and `subnet` are NULL, too, else one of them.
CREATE TABLE eips (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    tenant INTEGER NOT NULL REFERENCES tenants (id),
    pool INTEGER NOT NULL REFERENCES public_pools (id),
    cluster INTEGER NOT NULL,
    prefix TEXT NOT NULL,
    family INTEGER NOT NULL,
    first BLOB NOT NULL,
    last BLOB NOT NULL,
    vpc INTEGER REFERENCES vpcs (id),
    instance INTEGER,
    subnet INTEGER REFERENCES subnets (id),
    inside TEXT,
    inside_first BLOB,
    inside_last BLOB,
    revision INTEGER NOT NULL,
    UNIQUE (tenant, name),
    UNIQUE (family, first)
) STRICT;
CREATE INDEX eips_pool ON eips (pool, family, first);
CREATE UNIQUE INDEX eips_inside ON eips (vpc, family, inside_first);
CREATE INDEX eips_instance ON eips (instance);
CREATE INDEX eips_subnet ON eips (subnet);

-- 1: the route leads to the Internet; `peering` is NULL then.
ALTER TABLE routes ADD COLUMN internet INTEGER NOT NULL DEFAULT 0;

-- NAT gateways of VPCs. `cluster` is that of the pool. `addresses` are IPv4 addresses in ascending order, separated by commas.
CREATE TABLE nat_gateways (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    vpc INTEGER NOT NULL UNIQUE REFERENCES vpcs (id),
    pool INTEGER NOT NULL REFERENCES public_pools (id),
    cluster INTEGER NOT NULL,
    addresses TEXT NOT NULL,
    sessions INTEGER NOT NULL,
    blocks INTEGER NOT NULL,
    filtering TEXT NOT NULL,
    revision INTEGER NOT NULL
) STRICT;
CREATE INDEX nat_gateways_pool ON nat_gateways (pool);

-- The same addresses one by one, as numbers: no other NAT gateway has them.
CREATE TABLE nat_addresses (
    address INTEGER PRIMARY KEY,
    nat_gateway INTEGER NOT NULL REFERENCES nat_gateways (id)
) STRICT;
CREATE INDEX nat_addresses_gateway ON nat_addresses (nat_gateway);
