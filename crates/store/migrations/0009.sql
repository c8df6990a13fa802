-- What the outbox holds has another encoding of instances.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

CREATE TABLE security_groups (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    vpc INTEGER NOT NULL REFERENCES vpcs (id),
    description TEXT NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (vpc, name)
) STRICT;

-- `protocol` is NULL for any protocol. `remote` is a prefix; if it and `remote_group` are NULL, any address.
-- `content` is the text of what the rule matches: two rules with the same meaning have the same.
CREATE TABLE security_rules (
    id INTEGER PRIMARY KEY,
    security_group INTEGER NOT NULL REFERENCES security_groups (id),
    vpc INTEGER NOT NULL REFERENCES vpcs (id),
    direction TEXT NOT NULL,
    family TEXT NOT NULL,
    protocol INTEGER,
    ports TEXT,
    icmp_type INTEGER,
    icmp_code INTEGER,
    remote TEXT,
    remote_group INTEGER REFERENCES security_groups (id),
    content TEXT NOT NULL,
    description TEXT NOT NULL,
    revision INTEGER NOT NULL,
    UNIQUE (security_group, content)
) STRICT;
CREATE INDEX security_rules_vpc ON security_rules (vpc);
CREATE INDEX security_rules_remote ON security_rules (remote_group);

-- The sets of groups that instances have or had, and their identities, from 1. `members` are the ids of the groups in
-- ascending order, separated by commas. `instances` is the number of instances that have the set.
CREATE TABLE group_sets (
    vpc INTEGER NOT NULL REFERENCES vpcs (id),
    identity INTEGER NOT NULL,
    members TEXT NOT NULL,
    instances INTEGER NOT NULL,
    PRIMARY KEY (vpc, identity),
    UNIQUE (vpc, members)
) STRICT;

-- Identities from here on were never assigned.
ALTER TABLE vpcs ADD COLUMN next_identity INTEGER NOT NULL DEFAULT 1;

-- 0: the instance has no groups, its port is not filtered.
ALTER TABLE instances ADD COLUMN identity INTEGER NOT NULL DEFAULT 0;

-- Each VPC gets its group `default`, with the rules of a new one: five ids for each VPC.
INSERT INTO security_groups (id, name, vpc, description, revision)
    SELECT m.next_id + 5 * (ROW_NUMBER() OVER (ORDER BY v.id) - 1), 'default', v.id, '', m.revision
    FROM vpcs v CROSS JOIN meta m;
INSERT INTO security_rules (id, security_group, vpc, direction, family, content, description, revision)
    SELECT id + 1, id, vpc, 'egress', 'ipv4', 'egress ipv4 any to any', '', revision FROM security_groups;
INSERT INTO security_rules (id, security_group, vpc, direction, family, content, description, revision)
    SELECT id + 2, id, vpc, 'egress', 'ipv6', 'egress ipv6 any to any', '', revision FROM security_groups;
INSERT INTO security_rules (id, security_group, vpc, direction, family, remote_group, content, description, revision)
    SELECT id + 3, id, vpc, 'ingress', 'ipv4', id, 'ingress ipv4 any from sg-' || id, '', revision FROM security_groups;
INSERT INTO security_rules (id, security_group, vpc, direction, family, remote_group, content, description, revision)
    SELECT id + 4, id, vpc, 'ingress', 'ipv6', id, 'ingress ipv6 any from sg-' || id, '', revision FROM security_groups;
INSERT INTO group_sets (vpc, identity, members, instances)
    SELECT vpc, 1, CAST(id AS TEXT), 0 FROM security_groups;
UPDATE vpcs SET next_identity = 2;
UPDATE meta SET next_id = next_id + 5 * (SELECT COUNT(*) FROM vpcs);
