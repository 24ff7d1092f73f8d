-- The relay's tables. They live beside the application's own, in its database.
-- Valid on MySQL 5.7+, 8, 9 and MariaDB 10.6+. Every statement can run twice: DDL commits by itself,
-- so a migration that was cut short is run again from its first statement.

CREATE TABLE IF NOT EXISTS outbox_events (
    id BIGINT NOT NULL AUTO_INCREMENT,
    aggregate_type VARCHAR(64) NOT NULL,
    aggregate_id BIGINT NOT NULL,
    event_type VARCHAR(128) NOT NULL,
    payload JSON NOT NULL,
    -- Extra message headers, one flat object; `traceparent` among them.
    headers JSON NULL,
    status ENUM('PENDING', 'PROCESSING', 'PUBLISHED', 'FAILED') NOT NULL DEFAULT 'PENDING',
    attempts INT NOT NULL DEFAULT 0,
    locked_by VARCHAR(128) NULL,
    locked_until DATETIME(6) NULL,
    last_error TEXT NULL,
    published_at DATETIME(6) NULL,
    -- Compared byte by byte: keys that differ in case are two events.
    idempotency_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    PRIMARY KEY (id),
    UNIQUE KEY uq_outbox_idempotency_key (idempotency_key),
    -- Serves `WHERE status = … ORDER BY id`: claims in commit-like order without a sort.
    KEY idx_outbox_claim (status, id),
    KEY idx_outbox_lock (status, locked_until)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS dead_letter_events (
    id BIGINT NOT NULL AUTO_INCREMENT,
    source_event_id BIGINT NULL,
    event_type VARCHAR(128) NOT NULL,
    payload JSON NOT NULL,
    error TEXT NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (id),
    KEY idx_dead_letter_source (source_event_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- One row a relay name. `epoch` rises with each take-over; every write is fenced by it.
CREATE TABLE IF NOT EXISTS relay_checkpoints (
    name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    epoch BIGINT NOT NULL DEFAULT 0,
    position LONGTEXT NULL,
    owner VARCHAR(255) NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
