-- One column says when a saga or a command is due for whoever comes first: at once, after a delay, or when the lease of its
-- worker is over. It is NULL once there is nothing left to do, so that an index on it alone holds, in order, what a claim reads.
-- MySQL has no ADD COLUMN IF NOT EXISTS: a statement is made only where what it adds is missing.

SET @saga_leases = (
    SELECT IF(COUNT(*) = 0,
        'ALTER TABLE saga_instances MODIFY COLUMN next_attempt_at DATETIME(6) NULL DEFAULT CURRENT_TIMESTAMP(6), DROP KEY idx_saga_due, ADD KEY idx_saga_next (next_attempt_at), ADD KEY idx_saga_status (status)',
        'DO 0')
    FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'saga_instances' AND index_name = 'idx_saga_next'
);
PREPARE saga_leases FROM @saga_leases;
EXECUTE saga_leases;
DEALLOCATE PREPARE saga_leases;

UPDATE saga_instances SET next_attempt_at = NULL WHERE status IN ('COMPLETED', 'FAILED', 'COMPENSATED') AND next_attempt_at IS NOT NULL;
UPDATE saga_instances SET next_attempt_at = created_at WHERE status IN ('RUNNING', 'COMPENSATING', 'COMPENSATION_FAILED') AND next_attempt_at IS NULL;

-- `completed_at` stays when a step is undone: it tells whether its local rows were ever committed.
SET @saga_history = (
    SELECT IF(COUNT(*) = 0,
        'ALTER TABLE saga_steps ADD COLUMN undo_attempts INT NOT NULL DEFAULT 0 AFTER attempts, ADD COLUMN started_at DATETIME(6) NULL AFTER output, ADD COLUMN completed_at DATETIME(6) NULL AFTER started_at, ADD COLUMN compensated_at DATETIME(6) NULL AFTER completed_at',
        'DO 0')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'saga_steps' AND column_name = 'undo_attempts'
);
PREPARE saga_history FROM @saga_history;
EXECUTE saga_history;
DEALLOCATE PREPARE saga_history;

SET @command_leases = (
    SELECT IF(COUNT(*) = 0,
        'ALTER TABLE command_queue MODIFY COLUMN available_at DATETIME(6) NULL DEFAULT CURRENT_TIMESTAMP(6), DROP KEY idx_command_claim, ADD KEY idx_command_due (available_at), ADD KEY idx_command_status (status)',
        'DO 0')
    FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'command_queue' AND index_name = 'idx_command_due'
);
PREPARE command_leases FROM @command_leases;
EXECUTE command_leases;
DEALLOCATE PREPARE command_leases;

UPDATE command_queue SET available_at = NULL WHERE status IN ('DONE', 'FAILED') AND available_at IS NOT NULL;
