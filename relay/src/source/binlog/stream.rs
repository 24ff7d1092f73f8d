//! One binlog stream: opened at a position, checked, with a bound on its silence.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use mysql_async::{BinlogStream, BinlogStreamRequest, Sid};
use mysql_common::binlog::consts::BinlogChecksumAlg;
use mysql_common::binlog::events::Event;
use mysql_common::packets::{GnoInterval, Tag};

use super::decode::{Rotate, event_type};
use super::tail::Tail;
use super::{SourceError, guarded};
use crate::config::Config;
use crate::mysql::{Flavor, Server, Session, Unfit};
use crate::position::{GtidSet, Position};

/// Heartbeats that may be missed before the stream counts as dead.
const MISSED_HEARTBEATS: u32 = 3;

/// `ER_SOURCE_FATAL_ERROR_READING_BINLOG`: whatever is wrong with a replication request.
const FATAL_READING_BINLOG: u16 = 1236;

/// `ER_SLAVE_SAME_ID`: MariaDB's own number for a replica whose id another has taken; MySQL says 1236.
const SLAVE_SAME_ID: u16 = 4052;

/// Bytes of a checksum.
const CHECKSUM: usize = 4;

/// An open stream.
pub(super) struct Stream {
    inner: BinlogStream,
    silence: Duration,
    server_id: u32,
    /// Whether the server's binlog has checksums.
    checksums: bool,
    /// The place that was asked for, until the server has confirmed it.
    asked: Option<(Arc<str>, u64)>,
}

impl Stream {
    /// Opens a stream where the tail stands.
    pub(super) async fn open(config: &Config, tail: &mut Tail) -> Result<Self, SourceError> {
        let mut session = Session::connect(config).await?;
        let server = Server::inspect(&mut session).await?;
        server
            .fitness(&mut session)
            .await?
            .map_err(SourceError::Unfit)?;
        if server.server_id == config.server_id {
            return Err(SourceError::ServerId(server.server_id));
        }
        tail.follow(&server);
        let position = tail.position().clone();
        check_purged(&server, &mut session, &position).await?;
        prepare(config, &server, &mut session, &position).await?;
        let checksums = has_checksums(&mut session).await?;
        let mut request = BinlogStreamRequest::new(config.server_id)
            .with_hostname(b"outbox-relay")
            .with_port(0);
        let file: Arc<str>;
        let mut asked = None;
        match &position {
            Position::Gtid(set) => request = request.with_gtid().with_gtid_set(sids(set)),
            // The list was set in the session: MariaDB finds the file by it.
            Position::MariaDb(_) => {}
            Position::File { file: name, offset } => {
                file = name.clone();
                asked = Some((name.clone(), *offset));
                request = request.with_filename(file.as_bytes()).with_pos(*offset);
            }
        }
        let opening = session.into_conn().get_binlog_stream(request);
        let inner = tokio::time::timeout(config.connect_timeout, opening)
            .await
            .map_err(|_| SourceError::Silent)?
            .map_err(|error| refusal(error, config.server_id))?;
        Ok(Self {
            inner,
            silence: config.binlog_heartbeat * MISSED_HEARTBEATS,
            server_id: config.server_id,
            checksums,
            asked,
        })
    }

    /// The next event, if its bytes are here already.
    pub(super) fn at_hand(&mut self) -> Result<Option<Event>, SourceError> {
        // The driver panics on an event that is shorter than it says.
        match guarded(self.inner.next()).now_or_never() {
            None => Ok(None),
            Some(read) => self.accept(read?).map(Some),
        }
    }

    /// The next event.
    ///
    /// # Cancel safety
    /// Safe: a half-read packet stays in the stream.
    pub(super) async fn next(&mut self) -> Result<Event, SourceError> {
        let read = tokio::time::timeout(self.silence, guarded(self.inner.next())).await;
        let read = read.map_err(|_| SourceError::Silent)??;
        self.accept(read)
    }

    fn accept(&mut self, read: Option<mysql_async::Result<Event>>) -> Result<Event, SourceError> {
        let event = read
            .ok_or(SourceError::Ended)?
            .map_err(|error| refusal(error, self.server_id))?;
        let place = || format!("offset {}", event.header().log_pos());
        let damaged = |why| SourceError::Damaged {
            place: place(),
            why,
        };
        verify(&event, self.checksums).map_err(damaged)?;
        if let Some((file, offset)) = self.asked.take()
            && event.header().event_type_raw() == event_type::ROTATE
            && Rotate::parse(event.data())
                .is_ok_and(|at| at.position != offset || !names(at.file, file.as_bytes()))
        {
            return Err(damaged("it begins at another place than was asked for"));
        }
        Ok(event)
    }
}

/// Whether the first event of a stream names that file. The format, which tells whether events end in a checksum, comes
/// behind it: the driver has not cut one off yet, and MariaDB writes one.
fn names(found: &[u8], file: &[u8]) -> bool {
    found
        .strip_prefix(file)
        .is_some_and(|rest| rest.is_empty() || rest.len() == CHECKSUM)
}

/// The driver reads checksums but does not compare them.
fn verify(event: &Event, checksums: bool) -> Result<(), &'static str> {
    let footer = event.footer();
    let Ok(algorithm) = footer.get_checksum_alg() else {
        return Err("its checksums are of an unknown kind");
    };
    // Events within a compressed transaction are covered by its own.
    let (Some(algorithm), Some(sum), true) =
        (algorithm, event.checksum(), footer.get_checksum_enabled())
    else {
        return Ok(());
    };
    let holds = || sum == event.calc_checksum(algorithm).to_le_bytes();
    match algorithm {
        BinlogChecksumAlg::BINLOG_CHECKSUM_ALG_CRC32 if !holds() => Err("a checksum is wrong"),
        // A format event has a checksum in any case, and "off" in it may be a flipped bit.
        BinlogChecksumAlg::BINLOG_CHECKSUM_ALG_OFF if checksums && !holds() => {
            Err("it says that there are no checksums, and its own is wrong")
        }
        BinlogChecksumAlg::BINLOG_CHECKSUM_ALG_CRC32
        | BinlogChecksumAlg::BINLOG_CHECKSUM_ALG_OFF => Ok(()),
    }
}

/// Whether the binlog has checksums, as of now.
async fn has_checksums(session: &mut Session) -> Result<bool, SourceError> {
    let select = "SELECT CAST(@@global.binlog_checksum AS CHAR)";
    let found: Option<(String,)> = session.first("ask for binlog_checksum", select).await?;
    Ok(found.is_some_and(|(algorithm,)| algorithm == "CRC32"))
}

/// Error 1236 has a dozen meanings, told apart by its text alone (MySQL: `rpl_binlog_sender.cc`, MariaDB:
/// `sql_repl.cc`).
fn refusal(error: mysql_async::Error, server_id: u32) -> SourceError {
    let mysql_async::Error::Server(server) = &error else {
        return SourceError::Stream(error);
    };
    // ER_ACCESS_DENIED_ERROR and ER_SPECIFIC_ACCESS_DENIED_ERROR: the login itself was fine.
    if matches!(server.code, 1045 | 1227) {
        return SourceError::Denied(server.message.clone());
    }
    let text = server.message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let displaces = matches!(server.code, FATAL_READING_BINLOG | SLAVE_SAME_ID);
    if displaces
        && says(&[
            "same server_uuid",
            "same server_id",
            "same server id",
            "server_uuid/server_id",
        ])
    {
        return SourceError::Displaced {
            server_id,
            message: server.message.clone(),
        };
    }
    if server.code != FATAL_READING_BINLOG {
        return SourceError::Stream(error);
    }
    let gone = [
        "purged",
        "could not find first log",
        "could not find gtid",
        "not found in binlog",
        "not in the master's binlog",
        "impossible position",
        "position > file size",
        "more gtids than",
        "has been purged",
        "missing on the",
        "it contains gtid",
        "cannot find",
        "could not open log file",
        "could not find target log",
        // An offset that is no event's beginning: another server's, or the file is damaged.
        "bogus data in log event",
    ];
    if says(&gone) {
        return SourceError::Gap(server.message.clone());
    }
    SourceError::Stream(error)
}

/// With GTIDs the server's answer can be foreseen, and told in plainer words: what was purged must be dealt with.
async fn check_purged(
    server: &Server,
    session: &mut Session,
    position: &Position,
) -> Result<(), SourceError> {
    let set = match (server.flavor, position) {
        (Flavor::MySql, Position::Gtid(set)) => set,
        (Flavor::MySql, Position::MariaDb(_)) | (Flavor::MariaDb, Position::Gtid(_)) => {
            let why = format!(
                "the checkpoint is another kind of server's than {}",
                server.version
            );
            return Err(SourceError::Gap(why));
        }
        (Flavor::MySql, Position::File { .. })
        | (Flavor::MariaDb, Position::MariaDb(_) | Position::File { .. }) => return Ok(()),
    };
    if !server.gtid {
        return Err(SourceError::Gap(
            "the checkpoint is a GTID set, and the server has gtid_mode off".to_owned(),
        ));
    }
    let doing = "ask what was purged from the binlog";
    let sets: Option<(String, String)> = session
        .first(
            doing,
            "SELECT CAST(@@global.gtid_purged AS CHAR), CAST(@@global.gtid_executed AS CHAR)",
        )
        .await?;
    let (purged, executed) = sets.unwrap_or_default();
    let read = |text: &str| {
        text.parse::<GtidSet>()
            .map_err(|e| SourceError::Unfit(Unfit::from(e)))
    };
    if !set.contains_set(&read(&purged)?) {
        return Err(SourceError::Gap(format!("the server has purged {purged}")));
    }
    if !read(&executed)?.contains_set(set) {
        return Err(SourceError::Gap(format!(
            "the server has executed only {executed}: it was reset, or is another server"
        )));
    }
    Ok(())
}

/// Session variables that shape the stream. MySQL renamed them in 8.0.26 and reads both names; MariaDB keeps the old.
async fn prepare(
    config: &Config,
    server: &Server,
    session: &mut Session,
    position: &Position,
) -> Result<(), SourceError> {
    let doing = "prepare the binlog stream";
    let period = config.binlog_heartbeat.as_nanos();
    session
        .run(
            doing,
            &format!(
                "SET @master_heartbeat_period = {period}, @source_heartbeat_period = {period}"
            ),
        )
        .await?;
    if server.flavor == Flavor::MariaDb {
        // 4 = MARIA_SLAVE_CAPABILITY_GTID: without it the server sends no GTID events.
        session
            .run(doing, "SET @mariadb_slave_capability = 4")
            .await?;
        if let Position::MariaDb(_) = position {
            let state = "SET @slave_connect_state = ?";
            session
                .execute(doing, state, (position.to_string(),))
                .await?;
            session
                .run(doing, "SET @slave_gtid_strict_mode = 0")
                .await?;
            session
                .run(doing, "SET @slave_gtid_ignore_duplicates = 0")
                .await?;
        }
    }
    Ok(())
}

fn sids(set: &GtidSet) -> Vec<Sid<'static>> {
    set.blocks()
        .map(|block| {
            let intervals = block.intervals.into_iter();
            let intervals = intervals
                .map(|(start, end)| GnoInterval::new(start, end))
                .collect();
            let sid = Sid::new(block.uuid).with_intervals(intervals);
            match block.tag.and_then(|tag| Tag::new(tag.to_owned()).ok()) {
                Some(tag) => sid.with_tag(tag),
                None => sid,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, message: &str) -> SourceError {
        let error = mysql_async::ServerError {
            code,
            message: message.to_owned(),
            state: "HY000".to_owned(),
        };
        refusal(mysql_async::Error::Server(error), 7)
    }

    #[test]
    fn servers_say_in_their_own_ways_that_an_id_is_taken() {
        for (code, message) in [
            (
                1236,
                "A replica with the same server_uuid/server_id as this replica has connected to the source",
            ),
            (
                4052,
                "A slave with the same server_uuid/server_id is already connected",
            ),
        ] {
            let error = refused(code, message);
            assert!(
                matches!(error, SourceError::Displaced { server_id: 7, .. }),
                "{error}"
            );
        }
        let gone = refused(
            1236,
            "Could not find first log file name in binary log index file",
        );
        assert!(gone.is_gap(), "{gone}");
        assert!(matches!(
            refused(1053, "Server shutdown in progress"),
            SourceError::Stream(_)
        ));
    }
}
