-- Keys of several tenants or routes apart, answers byte for byte (a JSON column reorders the keys of objects), and an end of each key's life.
-- MySQL has no ADD COLUMN IF NOT EXISTS: the statement is made only where the column is missing.

SET @idempotency_scope = (
    SELECT IF(COUNT(*) = 0,
        'ALTER TABLE idempotency_keys ADD COLUMN scope VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '''' AFTER idempotency_key, ADD COLUMN expires_at DATETIME(6) NULL AFTER fence, MODIFY COLUMN response_body LONGBLOB NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (idempotency_key, scope), DROP KEY idx_idempotency_expiry, ADD KEY idx_idempotency_expires (expires_at)',
        'DO 0')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'idempotency_keys' AND column_name = 'scope'
);
PREPARE idempotency_scope FROM @idempotency_scope;
EXECUTE idempotency_scope;
DEALLOCATE PREPARE idempotency_scope;

UPDATE idempotency_keys SET expires_at = created_at + INTERVAL 1 DAY WHERE expires_at IS NULL;
