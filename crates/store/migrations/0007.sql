-- The random id of each commit. After a restored backup, a revision is taken again by another commit, which has
-- another id.
CREATE TABLE commits (
    revision INTEGER PRIMARY KEY,
    id INTEGER NOT NULL UNIQUE
) STRICT;
