//! The claimer's statements (pure).

use crate::config::ClaimForm;
use crate::source::select::Select;
use crate::table::Table;

use super::Pick;

/// Leases freed by one statement.
pub(super) const FREED_AT_ONCE: u64 = 1_000;

/// Statements for one table and one server.
#[derive(Debug)]
pub(super) struct Statements {
    form: ClaimForm,
    lock: [String; 2],
    passed_over: [String; 2],
    take: [String; 2],
    taken: String,
    free: [String; 2],
}

impl Statements {
    pub(super) fn new(
        table: &Table,
        select: &Select,
        form: ClaimForm,
        index: Option<&str>,
        rows: usize,
    ) -> Self {
        let (name, id, status, list) = (&table.name, &table.id, &table.status, &select.list);
        // The optimizer takes the primary key for LIMIT where it believes that matches are many, and then walks
        // over every published row once they are few.
        let hint = index.map_or_else(String::new, |index| {
            format!(" FORCE INDEX (`{}`)", index.replace('`', "``"))
        });
        let free =
            format!("{status} = 'PENDING' AND (locked_until IS NULL OR locked_until <= NOW(6))");
        let expired = format!(
            "{status} = 'PROCESSING' AND (locked_until IS NULL OR locked_until <= NOW(6)) \
             AND (locked_by IS NULL OR locked_by <> ?)"
        );
        let order = format!("ORDER BY {id} LIMIT {rows}");
        let lock = [&free, &expired].map(|which| {
            format!("SELECT {list} FROM {name}{hint} WHERE {which} {order} FOR UPDATE SKIP LOCKED")
        });
        let claimed = "?,".repeat(rows.saturating_sub(1));
        let passed_over = [&free, &expired].map(|which| {
            format!(
                "SELECT {list} FROM {name}{hint} WHERE {which} AND {id} <= ? AND {id} NOT IN ({claimed}?)"
            )
        });
        let take = [&free, &expired].map(|which| {
            format!(
                "UPDATE {name}{hint} SET {status} = 'PROCESSING', locked_by = ?, locked_until = ? WHERE {which} {order}"
            )
        });
        let taken = format!(
            "SELECT {list} FROM {name} WHERE {status} = 'PROCESSING' AND locked_until = ? AND locked_by = ? ORDER BY {id}"
        );
        let free = ["PROCESSING", "PENDING"].map(|which| {
            format!(
                "UPDATE {name} SET {status} = 'PENDING', locked_by = NULL, locked_until = NULL \
                 WHERE {status} = '{which}' AND locked_until IS NOT NULL AND LEFT(locked_by, ?) = ? LIMIT {FREED_AT_ONCE}"
            )
        });
        Self {
            form,
            lock,
            passed_over,
            take,
            taken,
            free,
        }
    }

    pub(super) fn form(&self) -> ClaimForm {
        self.form
    }

    pub(super) fn form_name(&self) -> &'static str {
        match self.form {
            ClaimForm::Auto | ClaimForm::SkipLocked => "skip_locked",
            ClaimForm::Token => "token",
        }
    }

    /// Locks and reads rows. Parameters: the token, for expired ones.
    pub(super) fn lock(&self, pick: Pick) -> &str {
        let [free, expired] = &self.lock;
        match pick {
            Pick::Free => free,
            Pick::Expired => expired,
        }
    }

    /// Reads rows that a claim has passed over. Parameters: the token,
    /// for expired ones; the last key that was claimed; all keys that were, the last of them repeated up to the number of
    /// rows a claim.
    pub(super) fn passed_over(&self, pick: Pick) -> &str {
        let [free, expired] = &self.passed_over;
        match pick {
            Pick::Free => free,
            Pick::Expired => expired,
        }
    }

    /// Leases rows that were locked. Parameters: the token, the lease in microseconds, the keys.
    pub(super) fn lease(&self, table: &Table, keys: usize) -> String {
        format!(
            "UPDATE {} SET {} = 'PROCESSING', locked_by = ?, locked_until = NOW(6) + INTERVAL ? MICROSECOND WHERE {}",
            table.name,
            table.status,
            table.id_in(keys)
        )
    }

    /// Takes leases off. Parameters: the token, the keys.
    pub(super) fn give_back(&self, table: &Table, keys: usize) -> String {
        format!(
            "UPDATE {} SET {} = 'PENDING', locked_by = NULL, locked_until = NULL WHERE locked_by = ? AND {}",
            table.name,
            table.status,
            table.id_in(keys)
        )
    }

    /// Leases rows. Parameters: the token, until when, the token again for expired ones.
    pub(super) fn take(&self, pick: Pick) -> &str {
        let [free, expired] = &self.take;
        match pick {
            Pick::Free => free,
            Pick::Expired => expired,
        }
    }

    /// Reads what was leased. Parameters: until when, the token.
    pub(super) fn taken(&self) -> &str {
        &self.taken
    }

    /// Frees leases. Parameters: the length of a prefix of the token, the prefix.
    pub(super) fn free(&self) -> [String; 2] {
        self.free.clone()
    }
}
