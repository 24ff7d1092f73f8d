//! From the rows of a saga to what an engine works with; or why they can't be worked with.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Drive;
use crate::saga::SagaError;
use crate::saga::definition::Definition;
use crate::saga::engine::Inner;
use crate::saga::machine::{Mark, Progress};
use crate::saga::store::{Lease, Stored};

/// What a look at a saga gives.
pub(super) enum Opened {
    Ready(Box<Drive>),
    Refused(String),
    Lost,
}

impl Drive {
    pub(super) async fn open(
        inner: Arc<Inner>,
        lease: Lease,
        stop: CancellationToken,
    ) -> Result<Opened, SagaError> {
        let Some(stored) = inner.store.load(&lease, false).await? else {
            return Ok(Opened::Lost);
        };
        let Some(definition) = inner.definition(&stored.saga_type, stored.version).cloned() else {
            let (kind, version) = (&stored.saga_type, stored.version);
            return Ok(Opened::Refused(format!(
                "no definition of saga {kind} version {version}"
            )));
        };
        let bound = match definition.code.clone().bind(&stored.payload) {
            Ok(bound) => bound,
            Err(error) => {
                return Ok(Opened::Refused(format!(
                    "its payload can't be read: {error}"
                )));
            }
        };
        let (progress, outputs) = match read(&definition, &stored) {
            Ok(read) => read,
            Err(why) => return Ok(Opened::Refused(why)),
        };
        Ok(Opened::Ready(Box::new(Self {
            inner,
            lease,
            stop,
            definition,
            bound,
            correlation_id: stored.correlation_id,
            progress,
            outputs,
            error: stored.error,
        })))
    }
}

/// Marks and outputs by the steps of the definition; or why they don't fit it.
pub(super) fn read(
    definition: &Definition,
    stored: &Stored,
) -> Result<(Progress, BTreeMap<String, Value>), String> {
    let mut outputs = BTreeMap::new();
    let mut marks = Vec::with_capacity(definition.names.len());
    for (order, name) in (1_u32..).zip(definition.names.iter()) {
        let Some((stored_name, mark, output)) = stored.steps.get(&order) else {
            marks.push(Mark::default());
            continue;
        };
        if stored_name != name {
            return Err(format!(
                "its step {order} is {stored_name}, and {name} in the definition, which has changed without its version"
            ));
        }
        if let (true, Some(output)) = (mark.recorded, output) {
            let output = serde_json::from_str(output)
                .map_err(|error| format!("the output of step {name} can't be read: {error}"))?;
            outputs.insert(name.clone(), output);
        }
        marks.push(*mark);
    }
    let known = u32::try_from(marks.len()).unwrap_or(u32::MAX);
    if stored
        .steps
        .keys()
        .any(|order| !(1..=known).contains(order))
    {
        return Err(
            "it has steps that the definition has not; that has changed without its version"
                .to_owned(),
        );
    }
    let progress = Progress {
        status: stored.status,
        rounds: stored.rounds,
        marks,
    };
    Ok((progress, outputs))
}
