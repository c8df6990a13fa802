-- What each node has reported last of its health, so that all replicas show all nodes. `writer` is the process of the
-- replica that had the node's stream last; `connected` is 0 if that replica has seen the stream end. `report` is JSON.
CREATE TABLE health_reports (
    kind TEXT NOT NULL,
    node INTEGER NOT NULL,
    writer INTEGER NOT NULL,
    connected INTEGER NOT NULL,
    reported_ms INTEGER NOT NULL,
    report TEXT NOT NULL,
    PRIMARY KEY (kind, node)
) STRICT;

-- The migrations that health checks have started: by `migration`, the id of the migration, which may have ended.
CREATE TABLE health_migrations (
    migration INTEGER PRIMARY KEY,
    instance INTEGER NOT NULL,
    source INTEGER NOT NULL,
    target INTEGER NOT NULL,
    class TEXT NOT NULL,
    started_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX health_migrations_instance ON health_migrations (instance, started_ms);
CREATE INDEX health_migrations_started ON health_migrations (started_ms);
