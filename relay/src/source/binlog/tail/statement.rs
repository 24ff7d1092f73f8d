//! What a statement of the binlog is about (pure).

/// What follows a word at the beginning of a statement, whatever its case.
pub(super) fn after<'a>(sql: &'a [u8], word: &str) -> Option<&'a [u8]> {
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
