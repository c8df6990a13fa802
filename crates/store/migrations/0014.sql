-- What the outbox holds has another encoding of VPCs and EIPs.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- Limits of Internet traffic, in kbit/s and bytes. A rate that is NULL is no limit, a burst that is NULL the default.
CREATE TABLE meters (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    tenant INTEGER NOT NULL REFERENCES tenants (id),
    in_kbps INTEGER,
    in_burst INTEGER,
    out_kbps INTEGER,
    out_burst INTEGER,
    revision INTEGER NOT NULL,
    UNIQUE (tenant, name)
) STRICT;

-- The meter of an EIP, and that of the Internet traffic of a VPC, which belong to the same tenant.
ALTER TABLE eips ADD COLUMN meter INTEGER REFERENCES meters (id);
CREATE INDEX eips_meter ON eips (meter);
ALTER TABLE vpcs ADD COLUMN internet_meter INTEGER REFERENCES meters (id);
CREATE INDEX vpcs_internet_meter ON vpcs (internet_meter);
