//! `relay migrate`.

use std::io::Write as _;

use anyhow::Context as _;
use mysql_async::Conn;
use reliability::migrate;

use crate::config::Config;

/// Creates what is missing of the relay's tables.
pub(super) fn main(config: Config) -> anyhow::Result<()> {
    super::run::runtime()?.block_on(async {
        let session = crate::mysql::Session::connect(&config)
            .await
            .map_err(super::run::with_hint)?;
        let mut conn: Conn = session.into_conn();
        let report = migrate::run(&mut conn, &[migrate::OUTBOX, migrate::DEAD_LETTER_KEY])
            .await
            .with_context(|| format!("cannot migrate {}", config.mysql))?;
        conn.disconnect()
            .await
            .context("cannot close the connection")?;
        writeln!(std::io::stdout().lock(), "{report}").context("cannot print")
    })
}
