//! Old keys go.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::time::Duration;

use mysql_async::IsolationLevel::ReadCommitted;
use mysql_async::prelude::Queryable as _;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::Idempotency;
use crate::mysql::TransactionError;

/// By the index on `expires_at`. A claim that stands is never expired: its end lies after its lease, which is checked all the same.
const DELETE: &str = "DELETE FROM idempotency_keys WHERE expires_at <= NOW(6) \
    AND (locked_until IS NULL OR locked_until <= NOW(6)) ORDER BY expires_at LIMIT ?";

/// Rows of one transaction: few enough that nobody waits long for their locks.
const BATCH: u32 = 500;

impl Idempotency {
    /// Deletes expired keys `every` so often, in small batches, for ever: select it against the end of the server.
    ///
    /// # Cancel safety
    /// Dropped, it leaves a batch done or not done.
    pub async fn keep_clean(&self, every: Duration) -> Infallible {
        loop {
            match self.clean(BATCH).await {
                // There may be more.
                Ok(deleted) if deleted >= u64::from(BATCH) => continue,
                Ok(deleted) => debug!(deleted, "expired idempotency keys deleted"),
                Err(error) => {
                    let error: &dyn StdError = &error;
                    warn!(
                        error,
                        "expired idempotency keys not deleted; trying again later"
                    );
                }
            }
            sleep(every).await;
        }
    }

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
