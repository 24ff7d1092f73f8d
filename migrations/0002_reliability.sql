-- The tables of the `reliability` library: inbox, idempotency keys, sagas and the command queue.

CREATE TABLE IF NOT EXISTS inbox_events (
    event_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_type VARCHAR(128) NOT NULL,
    payload JSON NOT NULL,
    processed_at DATETIME(6) NULL,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (event_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS idempotency_keys (
    idempotency_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    request_hash CHAR(64) NOT NULL,
    status ENUM('PROCESSING', 'COMPLETED', 'FAILED') NOT NULL,
    -- What a replay answers: status code, body and the allowed headers.
    response_status SMALLINT NULL,
    response_headers JSON NULL,
    response_body JSON NULL,
    -- The claim: who works on the key, until when, and the fence that rises with each take-over.
    locked_by VARCHAR(128) NULL,
    locked_until DATETIME(6) NULL,
    fence BIGINT NOT NULL DEFAULT 0,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    PRIMARY KEY (idempotency_key),
    KEY idx_idempotency_expiry (created_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS saga_instances (
    id CHAR(36) NOT NULL,
    saga_type VARCHAR(128) NOT NULL,
    -- The definition that this instance was started with; an unknown one is refused, never guessed.
    definition_version INT NOT NULL DEFAULT 1,
    correlation_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    status ENUM('RUNNING', 'COMPLETED', 'FAILED', 'COMPENSATING', 'COMPENSATED', 'COMPENSATION_FAILED')
        NOT NULL DEFAULT 'RUNNING',
    payload JSON NOT NULL,
    last_error TEXT NULL,
    attempts INT NOT NULL DEFAULT 0,
    next_attempt_at DATETIME(6) NULL,
    locked_by VARCHAR(128) NULL,
    locked_until DATETIME(6) NULL,
    epoch BIGINT NOT NULL DEFAULT 0,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    PRIMARY KEY (id),
    UNIQUE KEY uq_saga_correlation (saga_type, correlation_id),
    KEY idx_saga_due (status, next_attempt_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS saga_steps (
    id BIGINT NOT NULL AUTO_INCREMENT,
    saga_id CHAR(36) NOT NULL,
    step_order INT NOT NULL,
    step_name VARCHAR(128) NOT NULL,
    status ENUM('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'COMPENSATING', 'COMPENSATED', 'COMPENSATION_FAILED')
        NOT NULL DEFAULT 'PENDING',
    error TEXT NULL,
    attempts INT NOT NULL DEFAULT 0,
    output JSON NULL,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    PRIMARY KEY (id),
    UNIQUE KEY uq_saga_step (saga_id, step_order),
    CONSTRAINT fk_saga_steps_saga FOREIGN KEY (saga_id) REFERENCES saga_instances (id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS command_queue (
    id BIGINT NOT NULL AUTO_INCREMENT,
    command_type VARCHAR(128) NOT NULL,
    payload JSON NOT NULL,
    -- Two commands with the same key are one command.
    command_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    status ENUM('PENDING', 'PROCESSING', 'DONE', 'FAILED') NOT NULL DEFAULT 'PENDING',
    attempts INT NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    available_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    locked_by VARCHAR(128) NULL,
    locked_until DATETIME(6) NULL,
    created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
    PRIMARY KEY (id),
    UNIQUE KEY uq_command_key (command_key),
    KEY idx_command_claim (status, id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
