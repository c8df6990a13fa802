-- What the site wants, by name, as JSON; plans of moves between clusters.

CREATE TABLE settings (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- state: proposed, applying, done, stopped. done: steps that are behind it.
CREATE TABLE placement_plans (
    id INTEGER PRIMARY KEY,
    created_ms INTEGER NOT NULL,
    state TEXT NOT NULL,
    steps INTEGER NOT NULL,
    done INTEGER NOT NULL,
    parallel INTEGER NOT NULL,
    note TEXT NOT NULL,
    body TEXT NOT NULL
) STRICT;
