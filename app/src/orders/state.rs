//! The status of an order, and how it changes: by optimistic locking.

use std::fmt;

use mysql_async::Transaction;
use mysql_async::prelude::Queryable as _;
use thiserror::Error;

/// Where an order is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Placed; its saga is on its way.
    Created,
    /// Stock, payment and shipment are there.
    Confirmed,
    /// Given up, and all that was done for it is undone.
    Cancelled,
}

impl Status {
    /// As its column holds it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Confirmed => "CONFIRMED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why the status of an order was not changed.
#[derive(Debug, Error)]
pub(crate) enum StateError {
    /// It is not there.
    #[error("there is no order {order}")]
    NotFound { order: i64 },
    /// It has come to another end.
    #[error("order {order} is {found}, and can't become {wanted}")]
    Forbidden {
        order: i64,
        found: String,
        wanted: Status,
    },
    /// Somebody else has changed it since it was read.
    #[error("order {order} was changed by somebody else since its version {version} was read")]
    LostUpdate { order: i64, version: i64 },
    /// MySQL failed.
    #[error("cannot {doing}")]
    Mysql {
        doing: &'static str,
        #[source]
        source: mysql_async::Error,
    },
}

/// What was read, and may be changed if it is still so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    order: i64,
    version: i64,
}

/// Reads an order that is CREATED, to change it.
pub(crate) async fn read(
    tx: &mut Transaction<'_>,
    order: i64,
    wanted: Status,
) -> Result<Version, StateError> {
    let row: Option<(String, i64)> = tx
        .exec_first("SELECT status, version FROM orders WHERE id = ?", (order,))
        .await
        .map_err(failed("read the status of an order"))?;
    let (found, version) = row.ok_or(StateError::NotFound { order })?;
    if found != Status::Created.as_str() {
        return Err(StateError::Forbidden {
            order,
            found,
            wanted,
        });
    }
    Ok(Version { order, version })
}

/// Changes an order, if it is as it was read.
pub(crate) async fn change(
    tx: &mut Transaction<'_>,
    read: Version,
    to: Status,
) -> Result<(), StateError> {
    let Version { order, version } = read;
    tx.exec_drop(
        "UPDATE orders SET status = ?, version = version + 1 WHERE id = ? AND version = ?",
        (to.as_str(), order, version),
    )
    .await
    .map_err(failed("change the status of an order"))?;
    match tx.affected_rows() {
        0 => Err(StateError::LostUpdate { order, version }),
        _ => Ok(()),
    }
}

fn failed(doing: &'static str) -> impl FnOnce(mysql_async::Error) -> StateError {
    move |source| StateError::Mysql { doing, source }
}
