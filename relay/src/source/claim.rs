//! The claimer: leases unpublished rows, where the binlog can't be read.
//!
//! A claim commits before its rows are published, so everybody sees them PROCESSING under a token and until when. A
//! lease that is over is claimable whatever the status. Rows are told apart by status, never by a cursor over the ids:
//! a transaction that commits late has lower ids than what was read before it.
//!
//! Two forms: `FOR UPDATE SKIP LOCKED` (MySQL 8.0.1, MariaDB 10.6), and for older servers `UPDATE … ORDER BY id LIMIT`
//! with a `SELECT` of what it has leased.

mod statements;

use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Params, Row, Value};
use tracing::warn;

use super::binlog::SourceError;
use super::select::{Select, positional};
use crate::catalogue::catalogue;
use crate::config::{ClaimForm, Config, Mark};
use crate::event::{Key, OutboxEvent};
use crate::ledger::Claim;
use crate::mysql::{MysqlError, Server, Session};
use crate::table::{Table, groups, value_of};
use statements::Statements;

/// Longest wait for a lock, in seconds: a claim that stands in somebody's way is done again.
const LOCK_WAIT_SECONDS: u32 = 5;
/// What a claim does, for errors.
const DOING: &str = "claim rows";
/// A lease is renewed three times before it would be over.
pub const RENEWALS_A_LEASE: u32 = 3;

/// The token of a relay's leases: `name:epoch:random`. The name lets its next leader free them at once.
pub fn token(name: &str, epoch: u64) -> Arc<str> {
    format!("{name}:{epoch}:{:08x}", fastrand::u32(..)).into()
}

/// Renews the leases of rows that are still leased under the claim's token.
///
/// # Errors
/// MySQL said no.
pub async fn renew(
    table: &Table,
    session: &mut Session,
    claim: &Claim,
    keys: &[Key],
) -> Result<(), MysqlError> {
    for group in groups(keys) {
        let update = format!(
            "UPDATE {} SET locked_until = NOW(6) + INTERVAL ? MICROSECOND WHERE locked_by = ? AND {}",
            table.name,
            table.id_in(group.len())
        );
        let mut values = vec![micros(claim.lease), Value::from(&*claim.token)];
        values.extend(group);
        session
            .execute("renew leases", update, Params::Positional(values))
            .await?;
    }
    Ok(())
}

fn micros(lease: Duration) -> Value {
    Value::UInt(u64::try_from(lease.as_micros()).unwrap_or(u64::MAX))
}

/// Which rows are to be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// PENDING, and not leased.
    Free,
    /// PROCESSING under a lease of another token that is over, or under none.
    Expired,
}

/// Rows that were leased.
#[derive(Debug, Default)]
pub struct Claimed {
    /// In the order of their keys.
    pub events: Vec<OutboxEvent>,
    /// Whether there may be more.
    pub is_full: bool,
}

/// A session that claims.
pub struct Claimer {
    session: Session,
    table: Table,
    select: Select,
    claim: Claim,
    statements: Statements,
    batch: usize,
}

impl Claimer {
    /// Connects, and looks at the server and the table.
    ///
    /// # Errors
    /// MySQL said no; or the table can't be claimed from.
    pub async fn open(config: &Config, claim: Claim) -> Result<Self, SourceError> {
        let doing = "prepare to claim rows";
        let mut session = Session::connect(config).await?;
        let server = Server::inspect(&mut session).await?;
        let catalogue = catalogue(config, &mut session).await?;
        let table = Table::new(config, &catalogue);
        let wrong = |why: String| SourceError::Table {
            table: format!("{}.{}", config.mysql.database(), config.table.as_str()),
            why,
        };
        let select =
            Select::new(config, &catalogue).map_err(|missing| wrong(missing.to_string()))?;
        if !table.can_be_claimed() {
            let why = "can't be polled: it needs a status column and the columns locked_by and locked_until (see migrations/0001_outbox.sql)";
            return Err(wrong(why.to_owned()));
        }
        if table.mark == Mark::None {
            let why = "can't be polled with mark = none: published rows would be claimed for ever";
            return Err(wrong(why.to_owned()));
        }
        let form = match config.claim {
            ClaimForm::Auto if server.skips_locked() => ClaimForm::SkipLocked,
            ClaimForm::Auto => ClaimForm::Token,
            form => form,
        };
        let index = claim_index(config, &mut session).await?;
        if index.is_none() {
            warn!(
                table = config.table.as_str(),
                "no index serves the claim, so each one sorts every unpublished row; run: CREATE INDEX idx_outbox_claim ON {} ({}, {})",
                table.name,
                table.status,
                table.id
            );
        }
        let lock_wait = format!("SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}");
        session.run(doing, &lock_wait).await?;
        crate::marker::prepare(&mut session).await?;
        crate::marker::lock_little(&mut session).await?;
        let statements =
            Statements::new(&table, &select, form, index.as_deref(), config.claim_batch);
        Ok(Self {
            session,
            table,
            select,
            claim,
            statements,
            batch: config.claim_batch,
        })
    }

    /// Which form claims take, for the log.
    pub fn form_name(&self) -> &'static str {
        self.statements.form_name()
    }

    /// Renews the leases of rows that are still leased under its token.
    ///
    /// # Errors
    /// MySQL said no.
    pub async fn renew(&mut self, keys: &[Key]) -> Result<(), MysqlError> {
        renew(&self.table, &mut self.session, &self.claim, keys).await
    }

    /// Frees what earlier leaders of that name have leased: this one leads now.
    ///
    /// # Errors
    /// MySQL said no.
    pub async fn free(&mut self, name: &str) -> Result<u64, MysqlError> {
        let prefix = format!("{name}:");
        let length = prefix.chars().count();
        let mut freed = 0;
        for statement in self.statements.free() {
            loop {
                let params = (length, &prefix);
                let rows = self
                    .session
                    .execute("free the leases of this relay's name", &*statement, params)
                    .await?;
                freed += rows;
                if rows < statements::FREED_AT_ONCE {
                    break;
                }
            }
        }
        Ok(freed)
    }

    /// Leases the next rows, in the order of their keys.
    ///
    /// # Errors
    /// MySQL said no. After a deadlock or a lock wait nothing is leased, and it can be done again.
    pub async fn claim(&mut self, pick: Pick) -> Result<Claimed, MysqlError> {
        self.session.run(DOING, "START TRANSACTION").await?;
        let claimed = self.claim_in_transaction(pick).await;
        let end = if claimed.is_ok() {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = self.session.run(DOING, end).await;
        let claimed = claimed?;
        ended?;
        Ok(claimed)
    }

    async fn claim_in_transaction(&mut self, pick: Pick) -> Result<Claimed, MysqlError> {
        let form = self.statements.form();
        let found = match form {
            ClaimForm::Auto | ClaimForm::SkipLocked => self.lock(pick).await?,
            ClaimForm::Token => self.take(pick).await?,
        };
        let is_full = found.len() >= self.batch;
        // A statement that locks sees no single moment: it passes over rows that are locked, or not committed yet, and
        // goes on to rows that were committed after them. What comes later in the aggregates of those has to wait.
        let skipped = self.passed_over(pick, &found).await?;
        let (waiting, events): (Vec<OutboxEvent>, Vec<OutboxEvent>) =
            found.into_iter().partition(|event| {
                let mut skipped = skipped.iter();
                skipped.any(|skipped| event.is_of_the_aggregate_of(skipped))
            });
        match form {
            ClaimForm::Auto | ClaimForm::SkipLocked => self.lease(&events).await?,
            ClaimForm::Token => self.give_back(&waiting).await?,
        }
        Ok(Claimed { events, is_full })
    }

    /// Locks rows that are unlocked.
    async fn lock(&mut self, pick: Pick) -> Result<Vec<OutboxEvent>, MysqlError> {
        let statement = self.statements.lock(pick).to_owned();
        let params = positional(self.token_of(pick));
        let rows: Vec<Row> = self.session.rows(DOING, statement, params).await?;
        Ok(self.events(rows))
    }

    /// Leases rows that were locked.
    async fn lease(&mut self, events: &[OutboxEvent]) -> Result<(), MysqlError> {
        for group in groups(&keys_of(events)) {
            let update = self.statements.lease(&self.table, group.len());
            let mut values = vec![Value::from(&*self.claim.token), micros(self.claim.lease)];
            values.extend(group);
            self.session
                .execute(DOING, update, Params::Positional(values))
                .await?;
        }
        Ok(())
    }

    /// Leases rows without locking them first. The moment at which the lease ends tells the rows of this claim from those
    /// of earlier ones.
    async fn take(&mut self, pick: Pick) -> Result<Vec<OutboxEvent>, MysqlError> {
        let until: Vec<(String,)> = self
            .session
            .rows(
                DOING,
                "SELECT CAST(NOW(6) + INTERVAL ? MICROSECOND AS CHAR)",
                (micros(self.claim.lease),),
            )
            .await?;
        let Some((until,)) = until.into_iter().next() else {
            return Ok(Vec::new());
        };
        let token = &*self.claim.token;
        let statement = self.statements.take(pick).to_owned();
        let mut values = vec![Value::from(token), Value::from(&until)];
        values.extend(self.token_of(pick));
        let taken = self
            .session
            .execute(DOING, statement, Params::Positional(values))
            .await?;
        if taken == 0 {
            return Ok(Vec::new());
        }
        let statement = self.statements.taken().to_owned();
        let rows: Vec<Row> = self.session.rows(DOING, statement, (until, token)).await?;
        Ok(self.events(rows))
    }

    /// Takes the lease off rows again.
    async fn give_back(&mut self, events: &[OutboxEvent]) -> Result<(), MysqlError> {
        for group in groups(&keys_of(events)) {
            let update = self.statements.give_back(&self.table, group.len());
            let mut values = vec![Value::from(&*self.claim.token)];
            values.extend(group);
            self.session
                .execute(DOING, update, Params::Positional(values))
                .await?;
        }
        Ok(())
    }

    fn events(&self, rows: Vec<Row>) -> Vec<OutboxEvent> {
        let rows = rows.into_iter();
        rows.filter_map(|row| self.select.event(row)).collect()
    }

    /// Rows that a claim has skipped although they come before the last that it has locked.
    async fn passed_over(
        &mut self,
        pick: Pick,
        events: &[OutboxEvent],
    ) -> Result<Vec<OutboxEvent>, MysqlError> {
        let Some(last) = events.last() else {
            return Ok(Vec::new());
        };
        let statement = self.statements.passed_over(pick).to_owned();
        let mut values = self.token_of(pick);
        values.push(value_of(&last.id));
        let padding = std::iter::repeat(last);
        let keys = events.iter().chain(padding).take(self.batch);
        values.extend(keys.map(|event| value_of(&event.id)));
        let rows: Vec<Row> = self
            .session
            .rows("look for rows passed over", statement, positional(values))
            .await?;
        Ok(self.events(rows))
    }

    fn token_of(&self, pick: Pick) -> Vec<Value> {
        match pick {
            Pick::Free => Vec::new(),
            Pick::Expired => vec![Value::from(&*self.claim.token)],
        }
    }

    /// What EXPLAIN says of the statement that claims free rows, for tests: the key used, and whether it sorts.
    ///
    /// # Errors
    /// MySQL said no.
    pub async fn plan(&mut self) -> Result<String, MysqlError> {
        let explain = match self.statements.form() {
            ClaimForm::Auto | ClaimForm::SkipLocked => {
                format!(
                    "EXPLAIN FORMAT=TRADITIONAL {}",
                    self.statements.lock(Pick::Free)
                )
            }
            ClaimForm::Token => {
                let literal = self.statements.take(Pick::Free).replace('?', "NULL");
                format!("EXPLAIN FORMAT=TRADITIONAL {literal}")
            }
        };
        let plan: Option<Row> = self.session.first("explain the claim", &explain).await?;
        let Some(plan) = plan else {
            return Ok(String::new());
        };
        let columns = plan.columns();
        let parts: Vec<String> = columns
            .iter()
            .zip(plan.unwrap_raw())
            .map(|(column, value)| {
                let value = value.map_or_else(String::new, |value| value.as_sql(true));
                format!("{}={value}", column.name_str())
            })
            .collect();
        Ok(parts.join(" "))
    }
}

pub(super) fn keys_of(events: &[OutboxEvent]) -> Vec<Key> {
    events.iter().map(|event| event.id.clone()).collect()
}

/// The name of an index that serves rows of one status in the order of their keys. Every secondary index of InnoDB ends
/// in the primary key, so one on the status alone does too.
pub(crate) async fn claim_index(
    config: &Config,
    session: &mut Session,
) -> Result<Option<String>, MysqlError> {
    let Some(status) = config.columns.status() else {
        return Ok(None);
    };
    let columns: Vec<(String, String)> = session
        .rows(
            "read the outbox table's indexes",
            "SELECT index_name, column_name FROM information_schema.statistics \
             WHERE table_schema = ? AND table_name = ? ORDER BY index_name, seq_in_index",
            (config.mysql.database(), config.table.as_str()),
        )
        .await?;
    let names: std::collections::BTreeSet<&str> =
        columns.iter().map(|(index, _)| index.as_str()).collect();
    let serves = |name: &&&str| {
        let mut parts = columns
            .iter()
            .filter(|(index, _)| index == **name)
            .map(|(_, column)| column.as_str());
        parts
            .next()
            .is_some_and(|first| first.eq_ignore_ascii_case(status.as_str()))
            && parts
                .next()
                .is_none_or(|second| second.eq_ignore_ascii_case(config.columns.id().as_str()))
    };
    Ok(names.iter().find(serves).map(|name| (*name).to_owned()))
}
