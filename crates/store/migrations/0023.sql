-- What the outbox holds has another encoding of network classes.
UPDATE meta SET compacted = revision;
DELETE FROM outbox;

-- 1: instances without a class of their own and without a rate have this class. At most one class is the default.
ALTER TABLE network_classes ADD COLUMN is_default INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX network_classes_default ON network_classes (is_default) WHERE is_default <> 0;
