//! The account as statements name it (pure).

use std::fmt;

/// `'user'@'host'`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account(String);

impl Account {
    /// Reads `CURRENT_USER()`: `user@host`, where the user may hold an @ of its own.
    pub(super) fn of(current_user: &str) -> Self {
        let (user, host) = current_user.rsplit_once('@').unwrap_or((current_user, "%"));
        Self(format!("{}@{}", quoted(user), quoted(host)))
    }

    /// The statement that gives it a privilege there.
    pub(super) fn grant(&self, privilege: &str, place: &str) -> String {
        format!("GRANT {privilege} ON {place} TO {self}")
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// A name between backquotes.
pub(super) fn name(text: &str) -> String {
    format!("`{}`", text.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_quoted() {
        let grant = Account::of("o'neil@home@10.0.0.%").grant("SELECT", "`a``b`.`t`");
        assert_eq!(
            grant,
            "GRANT SELECT ON `a``b`.`t` TO 'o''neil@home'@'10.0.0.%'"
        );
        assert_eq!(Account::of("@localhost").to_string(), "''@'localhost'");
        assert_eq!(name("a`b"), "`a``b`");
    }
}
