//! Changing dead letters: sending one again, or discarding it; each in a transaction with a line in `relay_audit`.
//!
//! The letter's row is locked first, so of two that want the same letter one finds it gone.

use mysql_async::Value;
use thiserror::Error;

use crate::catalogue::{Catalogue, catalogue};
use crate::config::{Config, Mark};
use crate::metrics::Metrics;
use crate::mysql::{MysqlError, Session, conflicts};
use crate::table::Table;

/// Why a letter stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// There is none of that number, or no longer.
    #[error("no such letter: {id}; `relay dlq list` shows those there are")]
    NoSuchLetter {
        /// Its number.
        id: i64,
    },
    /// A letter that does not name its outbox row.
    #[error(
        "letter {id} does not say which outbox row it came from; insert the event again (`relay dlq show {id}` has its payload), then run `relay dlq discard {id}`"
    )]
    NoKey {
        /// Its number.
        id: i64,
    },
    /// The row was deleted.
    #[error(
        "the outbox row {key} of letter {id} is gone; insert the event again (`relay dlq show {id}` has its payload), then run `relay dlq discard {id}`"
    )]
    RowGone {
        /// Its number.
        id: i64,
        /// Primary key of the row.
        key: String,
    },
    /// The row is in another state.
    #[error("the outbox row {key} of letter {id} is {status}, not FAILED: {advice}")]
    NotFailed {
        /// Its number.
        id: i64,
        /// Primary key of the row.
        key: String,
        /// Its status.
        status: String,
        /// What can be done.
        advice: &'static str,
    },
    /// Nothing would look at the row again.
    #[error(
        "letter {id} can't be sent again from its outbox row, since {why}; insert the event again under another idempotency key (`relay dlq show {id}` has its payload), then run `relay dlq discard {id}`"
    )]
    NotMarked {
        /// Its number.
        id: i64,
        /// Why not.
        why: &'static str,
    },
}

impl Refusal {
    /// Whether there is no such letter.
    pub fn is_absence(&self) -> bool {
        matches!(self, Refusal::NoSuchLetter { .. })
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The letter's number.
    pub id: i64,
    /// Primary key of its outbox row.
    pub key: Option<String>,
    /// Kind of event.
    pub event_type: String,
}

/// Changes letters, one at a time, in somebody's name.
pub struct Clerk<'a> {
    config: &'a Config,
    metrics: &'a Metrics,
    session: Session,
    table: Table,
    catalogue: Catalogue,
    actor: String,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Replay,
    Discard,
}

struct Found {
    key: Option<String>,
    event_type: String,
}

impl<'a> Clerk<'a> {
    /// Looks at the outbox table as it is now.
    ///
    /// # Errors
    /// MySQL said no.
    pub async fn new(
        config: &'a Config,
        metrics: &'a Metrics,
        mut session: Session,
        actor: &str,
    ) -> Result<Self, MysqlError> {
        let catalogue = catalogue(config, &mut session).await?;
        session.limit_lock_waits().await?;
        Ok(Self {
            config,
            metrics,
            session,
            table: Table::new(config, &catalogue),
            catalogue,
            // As much as the column takes.
            actor: actor.chars().take(255).collect(),
        })
    }

    /// The session, for looking at letters between changes.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Sets the letter's row PENDING, as if it had never been tried, and deletes the letter.
    ///
    /// # Errors
    /// MySQL said no, and nothing is changed; inside, why the letter stays.
    pub async fn replay(&mut self, id: i64) -> Result<Result<Done, Refusal>, MysqlError> {
        let metrics = self.metrics;
        conflicts!(metrics, self.change(id, Change::Replay))
    }

    /// Deletes the letter. Its row stays FAILED.
    ///
    /// # Errors
    /// MySQL said no, and nothing is changed; inside, why the letter stays.
    pub async fn discard(&mut self, id: i64) -> Result<Result<Done, Refusal>, MysqlError> {
        let metrics = self.metrics;
        conflicts!(metrics, self.change(id, Change::Discard))
    }

    async fn change(
        &mut self,
        id: i64,
        change: Change,
    ) -> Result<Result<Done, Refusal>, MysqlError> {
        let doing = "change a dead letter";
        self.session.run(doing, "START TRANSACTION").await?;
        let changed = self.change_in_transaction(id, change).await;
        let end = if matches!(changed, Ok(Ok(_))) {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = self.session.run(doing, end).await;
        let changed = changed?;
        ended?;
        Ok(changed)
    }

    async fn change_in_transaction(
        &mut self,
        id: i64,
        change: Change,
    ) -> Result<Result<Done, Refusal>, MysqlError> {
        let Some(found) = self.lock_letter(id).await? else {
            return Ok(Err(Refusal::NoSuchLetter { id }));
        };
        if matches!(change, Change::Replay)
            && let Err(refusal) = self.reset_row(id, found.key.as_deref()).await?
        {
            return Ok(Err(refusal));
        }
        let delete = format!(
            "DELETE FROM {} WHERE id = ?",
            self.config.dead_letter_table.quoted()
        );
        self.session
            .execute("delete a dead letter", delete, (id,))
            .await?;
        let action = match change {
            Change::Replay => "replay",
            Change::Discard => "discard",
        };
        self.session
            .execute(
                "write to relay_audit",
                "INSERT INTO relay_audit (actor, action, dead_letter_id, source_event_key, event_type) \
                 VALUES (?, ?, ?, ?, ?)",
                (&self.actor, action, id, &found.key, &found.event_type),
            )
            .await?;
        Ok(Ok(Done {
            id,
            key: found.key,
            event_type: found.event_type,
        }))
    }

    async fn lock_letter(&mut self, id: i64) -> Result<Option<Found>, MysqlError> {
        let select = format!(
            "SELECT COALESCE(source_event_key, CAST(source_event_id AS CHAR)), event_type FROM {} \
             WHERE id = ? FOR UPDATE",
            self.config.dead_letter_table.quoted()
        );
        let rows: Vec<(Option<String>, String)> = self
            .session
            .rows("look for a dead letter", select, (id,))
            .await?;
        let mut rows = rows.into_iter();
        Ok(rows
            .next()
            .map(|(key, event_type)| Found { key, event_type }))
    }

    /// Makes the row what it was before its first attempt.
    async fn reset_row(
        &mut self,
        id: i64,
        key: Option<&str>,
    ) -> Result<Result<(), Refusal>, MysqlError> {
        if !self.table.kept.status {
            let why = "the outbox table has no status column (RELAY_COLUMN_STATUS)";
            return Ok(Err(Refusal::NotMarked { id, why }));
        }
        if self.config.mark == Mark::None {
            let why = "rows are not marked (RELAY_MARK=none), and so are read from the binlog once";
            return Ok(Err(Refusal::NotMarked { id, why }));
        }
        let Some(key) = key else {
            return Ok(Err(Refusal::NoKey { id }));
        };
        let gone = || Refusal::RowGone {
            id,
            key: key.to_owned(),
        };
        let Some(value) = key_value(&self.catalogue, self.config.columns.id().as_str(), key) else {
            return Ok(Err(gone()));
        };
        let Table {
            name,
            id: column,
            status,
            kept,
            ..
        } = &self.table;
        let select =
            format!("SELECT CAST({status} AS CHAR) FROM {name} WHERE {column} = ? FOR UPDATE");
        let found: Vec<(Option<String>,)> = self
            .session
            .rows("look for a row", select, (value.clone(),))
            .await?;
        let Some((found,)) = found.into_iter().next() else {
            return Ok(Err(gone()));
        };
        let found = found.unwrap_or_else(|| "NULL".to_owned());
        if found != "FAILED" {
            return Ok(Err(Refusal::NotFailed {
                id,
                key: key.to_owned(),
                advice: advice(&found),
                status: found,
            }));
        }
        let attempts = if kept.attempts { ", attempts = 0" } else { "" };
        let error = if kept.last_error {
            ", last_error = NULL"
        } else {
            ""
        };
        let update = format!(
            "UPDATE {name} SET {status} = 'PENDING'{attempts}{error}{} WHERE {column} = ?",
            self.table.unlocked()
        );
        self.session
            .execute("set a row PENDING", update, (value,))
            .await?;
        Ok(Ok(()))
    }
}

fn advice(status: &str) -> &'static str {
    match status {
        "PUBLISHED" => "it was published meanwhile; the letter can be discarded",
        "PENDING" | "PROCESSING" => {
            "a relay is about to publish it; the letter can be discarded once it is PUBLISHED"
        }
        _ => "set it FAILED to send it again, or discard the letter",
    }
}

/// The key as a value of its column; none if the column can hold no such value.
fn key_value(catalogue: &Catalogue, column: &str, key: &str) -> Option<Value> {
    let definition = catalogue
        .column(column)
        .map(|column| column.definition.to_ascii_lowercase())
        .unwrap_or_default();
    if definition == "binary(16)" {
        let uuid = uuid::Uuid::try_parse(key).ok()?;
        return Some(Value::Bytes(uuid.as_bytes().to_vec()));
    }
    let word = definition.split(['(', ' ']).next().unwrap_or_default();
    match word {
        "tinyint" | "smallint" | "mediumint" | "int" | "integer" | "bigint" => {
            let signed = key.parse().map(Value::Int).ok();
            signed.or_else(|| key.parse().map(Value::UInt).ok())
        }
        _ => Some(key.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::CatalogueColumn;

    #[test]
    fn keys_have_the_type_of_their_column() {
        let uuid = "0192f0c1-2345-7890-abcd-ef0123456789";
        let bytes = uuid::Uuid::try_parse(uuid).unwrap().as_bytes().to_vec();
        for (definition, key, value) in [
            ("bigint(20)", "-5", Some(Value::Int(-5))),
            (
                "bigint unsigned",
                "18446744073709551615",
                Some(Value::UInt(u64::MAX)),
            ),
            ("int", "x", None),
            ("binary(16)", uuid, Some(Value::Bytes(bytes))),
            ("binary(16)", "5", None),
            ("varchar(36)", "5", Some(Value::Bytes(b"5".to_vec()))),
        ] {
            let column = CatalogueColumn {
                name: "ID".to_owned(),
                definition: definition.to_owned(),
                character_set: None,
            };
            let catalogue = Catalogue {
                columns: vec![column],
                created: None,
            };
            assert_eq!(
                key_value(&catalogue, "id", key),
                value,
                "{definition} {key}"
            );
        }
    }
}
