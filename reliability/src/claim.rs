//! How workers that share a table get out of each other's way when they claim rows.

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;

/// How due rows are claimed. Both forms give a row to one worker only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Form {
    /// [`Form::SkipLocked`] where the server knows it, else [`Form::Token`].
    #[default]
    Auto,
    /// `SELECT … FOR UPDATE SKIP LOCKED`: MySQL from 8.0.1, MariaDB from 10.6.
    SkipLocked,
    /// A plain read of candidates, then an update of each that is still due: also MySQL 5.7. Workers may meet at one row,
    /// and all but one then get fewer rows than there are.
    Token,
}

impl Form {
    /// The form for the server at the other end: never [`Form::Auto`].
    ///
    /// # Errors
    /// The server or the connection failed.
    pub(crate) async fn resolve(self, conn: &mut Conn) -> mysql_async::Result<Self> {
        if self != Self::Auto {
            return Ok(self);
        }
        let version: Option<String> = conn.query_first("SELECT VERSION()").await?;
        Ok(Self::for_version(&version.unwrap_or_default()))
    }

    fn for_version(version: &str) -> Self {
        // MariaDB once put a version that replicas of MySQL 5.5 accept in front of its own.
        let text = version.strip_prefix("5.5.5-").unwrap_or(version);
        let mut parts = text
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let mut part = || parts.next().unwrap_or(0);
        let release = (part(), part(), part());
        let since = if version.contains("MariaDB") {
            (10, 6, 0)
        } else {
            (8, 0, 1)
        };
        if release >= since {
            Self::SkipLocked
        } else {
            Self::Token
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_the_version() {
        for (version, form) in [
            ("5.7.44-log", Form::Token),
            ("8.0.0-dmr", Form::Token),
            ("8.0.1", Form::SkipLocked),
            ("9.7.0", Form::SkipLocked),
            ("10.5.27-MariaDB", Form::Token),
            ("5.5.5-10.5.27-MariaDB-log", Form::Token),
            ("5.5.5-10.6.1-MariaDB", Form::SkipLocked),
            ("11.4.2-MariaDB-ubu2404", Form::SkipLocked),
            ("", Form::Token),
        ] {
            assert_eq!(Form::for_version(version), form, "{version}");
        }
    }
}
