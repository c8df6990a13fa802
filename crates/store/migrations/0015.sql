-- Port forwards of NAT gateways. `vpc` and `cluster` are those of the NAT gateway, `address` is one of its addresses, and `inside` that
-- of the instance, both as numbers. `protocol` is `tcp` or `udp`.
-- As for EIPs and further addresses, no foreign key leads to `instances`: it would cost a search for each instance that is deleted.
-- The single writer checks the instance, and the deletion of an instance deletes its port forwards in the same transaction.
CREATE TABLE port_forwards (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    nat_gateway INTEGER NOT NULL REFERENCES nat_gateways (id),
    vpc INTEGER NOT NULL,
    cluster INTEGER NOT NULL,
    protocol TEXT NOT NULL,
    address INTEGER NOT NULL,
    port INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    inside INTEGER NOT NULL,
    inside_port INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (nat_gateway, name),
    UNIQUE (address, protocol, port),
    UNIQUE (vpc, inside, protocol, inside_port)
) STRICT;
CREATE INDEX port_forwards_instance ON port_forwards (instance);
