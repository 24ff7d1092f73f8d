//! What a statement of the binlog is about (pure).

use crate::source::binlog::decode::{XaStatement, XaVerb};

/// A statement, as far as it says where transactions begin and end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Statement<'a> {
    Begin,
    Commit,
    Rollback,
    /// A savepoint of that name.
    Savepoint(&'a [u8]),
    /// What came after the savepoint of that name does not count.
    RollbackTo(&'a [u8]),
    XaStart,
    /// `XA END`, and `XA PREPARE` as text: nothing is decided by it.
    XaPause,
    XaCommit(XaStatement),
    XaRollback(XaStatement),
    /// Any other; whether rows follow that belong to it (`CREATE TABLE … SELECT`, MySQL 8.0.21).
    Other {
        opens: bool,
    },
}

impl<'a> Statement<'a> {
    pub(super) fn parse(sql: &'a [u8]) -> Self {
        let is = |word: &str| sql.eq_ignore_ascii_case(word.as_bytes());
        let xa = || after(sql, "XA ").and_then(|_| XaStatement::parse(sql));
        if is("BEGIN") {
            Statement::Begin
        } else if is("COMMIT") {
            Statement::Commit
        } else if is("ROLLBACK") {
            Statement::Rollback
        } else if let Some(name) = after(sql, "SAVEPOINT ") {
            Statement::Savepoint(name)
        } else if let Some(name) = after(sql, "ROLLBACK TO ") {
            Statement::RollbackTo(after(name, "SAVEPOINT ").unwrap_or(name))
        } else if let Some(xa) = xa() {
            match xa.verb {
                XaVerb::Start => Statement::XaStart,
                XaVerb::End | XaVerb::Prepare => Statement::XaPause,
                XaVerb::Commit => Statement::XaCommit(xa),
                XaVerb::Rollback => Statement::XaRollback(xa),
            }
        } else {
            let opens = sql.to_ascii_uppercase().ends_with(b"START TRANSACTION");
            Statement::Other { opens }
        }
    }
}

/// What follows a word at the beginning of a statement, whatever its case.
fn after<'a>(sql: &'a [u8], word: &str) -> Option<&'a [u8]> {
    let (head, rest) = sql.split_at_checked(word.len())?;
    head.eq_ignore_ascii_case(word.as_bytes()).then_some(rest)
}

/// Whether a statement is one that inserts, and names the table.
pub(super) fn inserts_into(sql: &[u8], table: &[u8]) -> bool {
    let inserts = ["INSERT", "REPLACE", "LOAD"]
        .iter()
        .any(|word| after(sql, word).is_some());
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..);
    inserts
        && sql
            .split(|byte| !is_name(byte))
            .any(|word| word.eq_ignore_ascii_case(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_begin_and_end() {
        for (sql, statement) in [
            ("begin", Statement::Begin),
            ("COMMIT", Statement::Commit),
            ("ROLLBACK", Statement::Rollback),
            ("SAVEPOINT `a`", Statement::Savepoint(b"`a`")),
            ("ROLLBACK TO `a`", Statement::RollbackTo(b"`a`")),
            ("rollback to savepoint a", Statement::RollbackTo(b"a")),
            ("XA START X'61',X'',1", Statement::XaStart),
            ("XA END X'61',X'',1", Statement::XaPause),
            ("BEGINNING", Statement::Other { opens: false }),
            (
                "CREATE TABLE t (a INT) START TRANSACTION",
                Statement::Other { opens: true },
            ),
        ] {
            assert_eq!(Statement::parse(sql.as_bytes()), statement, "{sql}");
        }
        let commit = Statement::parse(b"XA COMMIT X'61',X'',1");
        assert!(matches!(commit, Statement::XaCommit(_)));
    }

    #[test]
    fn statements_that_insert_into_the_table() {
        for (sql, does) in [
            ("INSERT INTO outbox_events (id) VALUES (1)", true),
            ("insert ignore `shop`.`Outbox_Events` values (1)", true),
            ("REPLACE INTO outbox_events VALUES (1)", true),
            ("LOAD DATA INFILE 'x' INTO TABLE `outbox_events`", true),
            ("INSERT INTO outbox_events_old VALUES (1)", false),
            ("UPDATE outbox_events SET status = 'PUBLISHED'", false),
            ("DELETE FROM outbox_events", false),
        ] {
            assert_eq!(
                inserts_into(sql.as_bytes(), b"outbox_events"),
                does,
                "{sql}"
            );
        }
    }
}
