//! Marks: what becomes of a row whose event is confirmed.
//!
//! Nothing rests on a mark: it tells people, the cleaner and the claimer that a row is done.

use mysql_async::Params;

use crate::event::Key;
use crate::mysql::{MysqlError, Session};
use crate::table::{Table, groups};

/// Lets the session's updates write only the changed columns to the binlog, where the account may: a full image
/// would put each payload into the binlog twice more. Whether it may.
///
/// # Errors
/// The connection is gone.
pub async fn prepare(session: &mut Session) -> Result<bool, MysqlError> {
    let statement = "SET SESSION binlog_row_image = 'MINIMAL'";
    match session
        .run("make marks small in the binlog", statement)
        .await
    {
        Ok(_) => Ok(true),
        Err(error) if error.code().is_some() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets the session's statements lock only the rows that they change, so that claims pass nothing over. Where the binlog
/// is made of statements the server does not allow it (MySQL manual, "Setting The Binary Log Format").
///
/// Only for rows that were read from the table: an update under READ COMMITTED passes over a row whose insert is not
/// committed yet, and the binlog tells of it a moment before that.
///
/// # Errors
/// The connection is gone.
pub async fn lock_little(session: &mut Session) -> Result<(), MysqlError> {
    let doing = "prepare to write to claimed rows";
    let settings: Option<(u8, String)> = session
        .first(
            doing,
            "SELECT @@global.log_bin, CAST(@@session.binlog_format AS CHAR)",
        )
        .await?;
    let logs_statements =
        settings.is_some_and(|(log_bin, format)| log_bin != 0 && format == "STATEMENT");
    if !logs_statements {
        let statement = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        session.run(doing, statement).await?;
    }
    Ok(())
}

/// Marks the rows of those keys; a row that is marked already is left alone, and so is one that is not leased under
/// `token`, if there is one. How many rows were marked.
///
/// # Errors
/// MySQL said no. Marking again after that does no harm.
pub async fn mark(
    table: &Table,
    session: &mut Session,
    keys: &[Key],
    token: Option<&str>,
) -> Result<u64, MysqlError> {
    let mut marked = 0;
    for group in groups(keys) {
        let Some(statement) = table.mark_statement(token.is_some(), group.len()) else {
            return Ok(marked);
        };
        let fence = token.map(Into::into);
        let values = fence.into_iter().chain(group).collect();
        marked += session
            .execute("mark published rows", statement, Params::Positional(values))
            .await?;
    }
    Ok(marked)
}
