//! Remote calls: bounded in time, under a lease that is renewed meanwhile.

use tokio::time::{sleep, timeout};
use tracing::warn;

use super::Drive;
use super::write::WriteError;
use crate::saga::Failure;
use crate::saga::erased::Part;
use crate::{chain, guard};

/// Renewals within one lease: two may fail before it is over.
const RENEWALS: u32 = 3;

impl Drive {
    /// Runs a call within the step's timeout, and renews the lease meanwhile. Dropped as soon as the lease is lost.
    pub(super) async fn call<T>(
        &self,
        step: usize,
        call: Option<Part<'_, T>>,
    ) -> Result<Result<T, Failure>, WriteError> {
        let (Some(call), Some(policy)) = (call, self.definition.policies.get(step)) else {
            return Ok(Err(Failure::technical("there is no such step")));
        };
        let bounded = async {
            match timeout(policy.timeout, guard::catch(call)).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => {
                    self.inner.tally.panics.add(1);
                    Err(Failure::unknown(format!("panicked: {panic}")))
                }
                Err(_) => {
                    let bound = policy.timeout;
                    Err(Failure::unknown(format!("no answer within {bound:?}")))
                }
            }
        };
        tokio::select! {
            biased;
            outcome = bounded => Ok(outcome),
            () = self.renewed_in_vain() => Err(WriteError::Fenced),
        }
    }

    /// Renews the lease until it is another's.
    async fn renewed_in_vain(&self) {
        loop {
            sleep(self.inner.store.lease_time() / RENEWALS).await;
            match self.inner.store.renew(&self.lease).await {
                Ok(true) => {}
                Ok(false) => return,
                // It may still be ours; the fence will tell.
                Err(error) => {
                    let error = chain::text(&error);
                    warn!(saga = self.lease.id, error, "lease not renewed");
                }
            }
        }
    }
}
