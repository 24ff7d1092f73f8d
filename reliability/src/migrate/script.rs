//! From a script to its statements (pure).

/// The statements of a script, without their semicolons.
///
/// A statement ends with a semicolon at the end of a line; a line that begins with `--` or `#` is a comment. A semicolon
/// within a line, in a text for example, ends nothing.
pub(super) fn statements(script: &str) -> Vec<String> {
    let mut statements = Vec::new();
    let mut statement = String::new();
    for line in script.lines() {
        let text = line.trim();
        if text.is_empty() || text.starts_with("--") || text.starts_with('#') {
            continue;
        }
        if !statement.is_empty() {
            statement.push('\n');
        }
        match text.strip_suffix(';') {
            Some(end) => {
                statement.push_str(end);
                statements.push(std::mem::take(&mut statement));
            }
            None => statement.push_str(text),
        }
    }
    statements.push(statement);
    statements.retain(|statement| !statement.trim().is_empty());
    statements
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn comments_go_and_semicolons_end_lines_only() {
        let script = "-- head; of it\n\nCREATE TABLE a (\n  -- what for;\n  b INT\n);\r\n\
            # another\nINSERT INTO a VALUES ('x;y');\nDROP TABLE a";
        assert_eq!(
            statements(script),
            [
                "CREATE TABLE a (\nb INT\n)",
                "INSERT INTO a VALUES ('x;y')",
                "DROP TABLE a"
            ]
        );
    }

    #[test]
    fn nothing_is_no_statement() {
        assert!(statements("").is_empty());
        assert!(statements("-- only a comment\n;\n\n").is_empty());
    }

    proptest! {
        #[test]
        fn every_statement_comes_back(lines in prop::collection::vec("[A-Za-z(][A-Za-z0-9 ,;()]{0,20}[a-z)]", 0..10)) {
            let script: String = lines.iter().map(|line| format!("{line};\n-- {line};\n")).collect();
            prop_assert_eq!(statements(&script), lines);
        }
    }
}
