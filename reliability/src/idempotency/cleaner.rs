//! Old keys go.

use mysql_async::IsolationLevel::ReadCommitted;
use mysql_async::prelude::Queryable as _;

use super::Idempotency;
use crate::mysql::TransactionError;

/// By the index on `expires_at`. A claim that stands is never expired: its end lies after its lease, which is checked all the same.
const DELETE: &str = "DELETE FROM idempotency_keys WHERE expires_at <= NOW(6) \
    AND (locked_until IS NULL OR locked_until <= NOW(6)) ORDER BY expires_at LIMIT ?";

impl Idempotency {
    /// Deletes up to `batch` expired keys; how many it were. Call it again while it deletes as many as asked for.
    ///
    /// Many processes may clean at once.
    ///
    /// # Errors
    /// The database can't be used.
    pub async fn clean(&self, batch: u32) -> Result<u64, TransactionError<mysql_async::Error>> {
        self.database()
            .transaction(ReadCommitted, async move |tx| {
                tx.exec_drop(DELETE, (batch,)).await?;
                Ok(tx.affected_rows())
            })
            .await
    }
}
