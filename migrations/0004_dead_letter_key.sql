-- Which row a dead letter came from whatever the type of its key, how often it was tried, and who did what with dead letters.
-- MySQL has no ADD COLUMN IF NOT EXISTS: the statement is made only where the column is missing.

SET @dead_letter_key = (
    SELECT IF(COUNT(*) = 0,
        'ALTER TABLE dead_letter_events ADD COLUMN source_event_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL AFTER source_event_id, ADD COLUMN attempts INT NOT NULL DEFAULT 0 AFTER error, ADD KEY idx_dead_letter_key (source_event_key)',
        'DO 0')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'dead_letter_events' AND column_name = 'source_event_key'
);
PREPARE dead_letter_key FROM @dead_letter_key;
EXECUTE dead_letter_key;
DEALLOCATE PREPARE dead_letter_key;

UPDATE dead_letter_events SET source_event_key = source_event_id WHERE source_event_key IS NULL AND source_event_id IS NOT NULL;

-- What was done with dead letters, by whom; kept when the letter is gone.
CREATE TABLE IF NOT EXISTS relay_audit (
    id BIGINT NOT NULL AUTO_INCREMENT,
    at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    actor VARCHAR(255) NOT NULL,
    action VARCHAR(32) NOT NULL,
    dead_letter_id BIGINT NULL,
    source_event_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    event_type VARCHAR(128) NULL,
    detail TEXT NULL,
    PRIMARY KEY (id),
    KEY idx_relay_audit_at (at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
