//! Looking at dead letters: a page of them, one of them, and the ids of all that match.

use std::time::Duration;

use mysql_async::{Params, Value};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::config::Config;
use crate::mysql::{MysqlError, Session};

/// Letters a page at the most, for whoever asks for more.
pub const MOST_LETTERS: usize = 10_000;
/// Ids read at once for a change of many.
const PAGE: usize = 500;
/// Columns of a [`Letter`]. Times are UTC: the relay's sessions write and read them so.
const COLUMNS: &str = "id, COALESCE(source_event_key, CAST(source_event_id AS CHAR)), event_type, error, attempts, \
     DATE_FORMAT(created_at, '%Y-%m-%dT%H:%i:%s.%fZ')";

/// Which letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of that type of event, exactly.
    pub event_type: Option<String>,
    /// With that text in their error.
    pub error: Option<String>,
    /// Written within that time before now.
    pub since: Option<Duration>,
    /// Behind that id.
    pub after: Option<i64>,
}

/// A dead letter as it is stored, without its payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Letter {
    /// Its number, by which commands name it.
    pub id: i64,
    /// Primary key of its outbox row, as text.
    pub event_key: Option<String>,
    /// Kind of event.
    pub event_type: String,
    /// Why it was given up.
    pub error: String,
    /// How often it was tried.
    pub attempts: i64,
    /// When it was written, UTC.
    pub created_at: String,
}

/// A dead letter with its payload.
#[derive(Debug, Serialize)]
pub struct FullLetter {
    /// All but the payload.
    #[serde(flatten)]
    pub letter: Letter,
    /// JSON, as it is stored.
    pub payload: Box<RawValue>,
}

/// Letters that match, oldest first.
#[derive(Debug, Serialize)]
pub struct Listing {
    /// As many as were asked for at the most.
    pub letters: Vec<Letter>,
    /// Whether there are more.
    pub more: bool,
}

type Columns = (i64, Option<String>, String, String, i64, String);

impl From<Columns> for Letter {
    fn from((id, event_key, event_type, error, attempts, created_at): Columns) -> Self {
        Self {
            id,
            event_key,
            event_type,
            error,
            attempts,
            created_at,
        }
    }
}

impl Filter {
    /// What a letter must meet, with its parameters.
    fn condition(&self) -> (String, Vec<Value>) {
        let mut text = String::from("id > ?");
        let mut values = vec![Value::from(self.after.unwrap_or(0))];
        if let Some(event_type) = &self.event_type {
            text.push_str(" AND event_type = ?");
            values.push(event_type.into());
        }
        if let Some(error) = &self.error {
            text.push_str(" AND LOCATE(?, error) > 0");
            values.push(error.into());
        }
        if let Some(since) = self.since {
            text.push_str(" AND created_at >= NOW(6) - INTERVAL ? MICROSECOND");
            values.push(Value::UInt(
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            ));
        }
        (text, values)
    }
}

/// The first `limit` letters that match, oldest first.
///
/// # Errors
/// MySQL said no.
pub async fn list(
    config: &Config,
    session: &mut Session,
    filter: &Filter,
    limit: usize,
) -> Result<Listing, MysqlError> {
    let (condition, values) = filter.condition();
    let select = format!(
        "SELECT {COLUMNS} FROM {} WHERE {condition} ORDER BY id LIMIT {}",
        config.dead_letter_table.quoted(),
        limit + 1
    );
    let rows: Vec<Columns> = session
        .rows("list dead letters", select, Params::Positional(values))
        .await?;
    let more = rows.len() > limit;
    let letters = rows.into_iter().take(limit).map(Letter::from).collect();
    Ok(Listing { letters, more })
}

/// One letter, whole; none if there is no such letter.
///
/// # Errors
/// MySQL said no.
pub async fn show(
    config: &Config,
    session: &mut Session,
    id: i64,
) -> Result<Option<FullLetter>, MysqlError> {
    let table = config.dead_letter_table.quoted();
    let doing = "read a dead letter";
    let select = format!("SELECT {COLUMNS} FROM {table} WHERE id = ?");
    let rows: Vec<Columns> = session.rows(doing, select, (id,)).await?;
    let select = format!("SELECT CAST(payload AS CHAR) FROM {table} WHERE id = ?");
    let payloads: Vec<(String,)> = session.rows(doing, select, (id,)).await?;
    let (Some(columns), Some((payload,))) = (rows.into_iter().next(), payloads.into_iter().next())
    else {
        return Ok(None);
    };
    Ok(Some(FullLetter {
        letter: columns.into(),
        // The column holds JSON alone; on MariaDB it can be made to hold anything.
        payload: RawValue::from_string(payload).unwrap_or_default(),
    }))
}

/// The ids of the letters that match now, in pages: letters that come later are none of them.
#[derive(Debug)]
pub struct Ids {
    filter: Filter,
    last: i64,
    total: u64,
}

impl Ids {
    /// Looks how many there are and which is the last.
    ///
    /// # Errors
    /// MySQL said no.
    pub async fn of(
        config: &Config,
        session: &mut Session,
        filter: Filter,
    ) -> Result<Self, MysqlError> {
        let (condition, values) = filter.condition();
        let select = format!(
            "SELECT COUNT(*), COALESCE(MAX(id), 0) FROM {} WHERE {condition}",
            config.dead_letter_table.quoted()
        );
        let found: Vec<(u64, i64)> = session
            .rows("count dead letters", select, Params::Positional(values))
            .await?;
        let (total, last) = found.into_iter().next().unwrap_or_default();
        Ok(Self {
            filter,
            last,
            total,
        })
    }

    /// How many there were at the start.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The next of them; none at the end.
    ///
    /// # Errors
    /// MySQL said no.
    pub async fn next(
        &mut self,
        config: &Config,
        session: &mut Session,
    ) -> Result<Vec<i64>, MysqlError> {
        let (condition, mut values) = self.filter.condition();
        values.push(self.last.into());
        let select = format!(
            "SELECT id FROM {} WHERE {condition} AND id <= ? ORDER BY id LIMIT {PAGE}",
            config.dead_letter_table.quoted()
        );
        let rows: Vec<(i64,)> = session
            .rows("list dead letters", select, Params::Positional(values))
            .await?;
        let ids: Vec<i64> = rows.into_iter().map(|(id,)| id).collect();
        if let Some(id) = ids.last() {
            self.filter.after = Some(*id);
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_a_parameter_for_each_mark() {
        let all = Filter {
            event_type: Some("OrderCreated".to_owned()),
            error: Some("NO_ROUTE".to_owned()),
            since: Some(Duration::from_secs(60)),
            after: Some(7),
        };
        for filter in [Filter::default(), all] {
            let (text, values) = filter.condition();
            assert_eq!(text.matches('?').count(), values.len(), "{text}");
        }
    }

    #[test]
    fn a_letter_shows_its_payload_as_json() {
        let letter = FullLetter {
            letter: (
                1,
                Some("5".to_owned()),
                "T".to_owned(),
                "e".to_owned(),
                3,
                "t".to_owned(),
            )
                .into(),
            payload: RawValue::from_string("{\"a\": 1}".to_owned()).unwrap(),
        };
        assert_eq!(
            serde_json::to_string(&letter).unwrap(),
            "{\"id\":1,\"event_key\":\"5\",\"event_type\":\"T\",\"error\":\"e\",\"attempts\":3,\"created_at\":\"t\",\"payload\":{\"a\": 1}}"
        );
    }
}
