//! Any history, cut anywhere and read on from the last position, gives each committed event, in commit order, and nothing
//! of what was rolled back.

use std::collections::{BTreeMap, HashMap, HashSet};

use mysql_common::binlog::consts::BinlogVersion;
use mysql_common::binlog::events::FormatDescriptionEvent;
use proptest::prelude::*;

use super::*;
use crate::config::Raw;
use crate::event::Key;
use crate::mysql::Flavor;
use crate::position::{GtidSet, Step};
use crate::source::Item;

/// How transactions are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Gtid,
    File,
    MariaDb,
}

/// Part of a transaction.
#[derive(Debug, Clone)]
enum Work {
    Rows(usize),
    Savepoint(u8),
    RollbackTo(u8),
    /// Of another table.
    Foreign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Xid,
    Commit,
    Rollback,
}

/// What happens on the server, one after the other.
#[derive(Debug, Clone)]
enum Happening {
    Transaction(Vec<Work>, End),
    /// More rows than are held back.
    Large(usize),
    Statement,
    Prepare(usize),
    /// Commits, or rolls back, one of those that are prepared.
    Decide(usize, bool),
    Rotate,
}

/// What befalls the relay after so many events.
#[derive(Debug, Clone)]
struct Cut {
    events: usize,
    /// It ends, and so many of the last items were not confirmed; otherwise only the stream breaks.
    crash: Option<usize>,
}

struct Logged {
    file: usize,
    begin: u64,
    end: u64,
    kind: u8,
    data: Vec<u8>,
    /// Number of its transaction; none for what is between them.
    gno: Option<u64>,
}

/// A server's binlog, and what it should give.
struct Binlog {
    mode: Mode,
    events: Vec<Logged>,
    file: usize,
    offset: u64,
    gno: u64,
    rows: i64,
    /// Rows of the committed transactions, in commit order.
    committed: Vec<i64>,
    prepared: Vec<(u64, Vec<i64>)>,
}

const SID: [u8; 16] = [7; 16];

fn file_name(number: usize) -> String {
    format!("binlog.{:06}", number + 1)
}

fn lenenc(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text].concat()
}

fn table_map(table: &str) -> Vec<u8> {
    let id = if table == "outbox_events" { 9 } else { 10 };
    let mut data = vec![id, 0, 0, 0, 0, 0, 1, 0];
    data.extend([lenenc(b"shop"), vec![0], lenenc(table.as_bytes()), vec![0]].concat());
    data.extend([6, 8, 15, 8, 15, 252, 15]);
    data.extend(lenenc(&[100, 0, 100, 0, 2, 100, 0]));
    data.push(0);
    // Signs, character set and names of the columns.
    data.extend([1, 1, 0, 2, 1, 45]);
    let names = [
        "id",
        "aggregate_type",
        "aggregate_id",
        "event_type",
        "payload",
        "idempotency_key",
    ];
    let names: Vec<u8> = names
        .iter()
        .flat_map(|name| lenenc(name.as_bytes()))
        .collect();
    data.push(4);
    data.extend(lenenc(&names));
    data
}

fn rows(table_id: u8, ids: &[i64]) -> Vec<u8> {
    let mut data = vec![table_id, 0, 0, 0, 0, 0, 1, 0, 2, 0, 6, 0x3f];
    for id in ids {
        data.push(0);
        data.extend(id.to_le_bytes());
        data.extend(lenenc(b"order"));
        data.extend(1_i64.to_le_bytes());
        data.extend(lenenc(b"OrderTouched"));
        data.extend([2, 0, b'{', b'}']);
        data.extend(lenenc(format!("k{id}").as_bytes()));
    }
    data
}

fn query(sql: &str) -> Vec<u8> {
    let mut data = vec![0; 8];
    data.extend([4, 0, 0, 0, 0]);
    data.extend(b"shop\0");
    data.extend(sql.as_bytes());
    data
}

impl Binlog {
    fn new(mode: Mode, history: &[Happening]) -> Self {
        let mut server = Self {
            mode,
            events: Vec::new(),
            file: 0,
            offset: 4,
            gno: 0,
            rows: 0,
            committed: Vec::new(),
            prepared: Vec::new(),
        };
        for happening in history {
            server.happens(happening);
        }
        server
    }

    fn log(&mut self, kind: u8, data: Vec<u8>, gno: Option<u64>) {
        let begin = self.offset;
        self.offset += 19 + data.len() as u64;
        self.events.push(Logged {
            file: self.file,
            begin,
            end: self.offset,
            kind,
            data,
            gno,
        });
    }

    fn write(&mut self, kind: u8, data: Vec<u8>) {
        self.log(kind, data, Some(self.gno));
    }

    fn begin(&mut self, flags: u8, xid: Option<u64>) {
        self.gno += 1;
        let (kind, data) = match self.mode {
            Mode::Gtid => {
                let gno = self.gno.to_le_bytes();
                (event_type::GTID, [&[1][..], &SID, &gno].concat())
            }
            Mode::File => (event_type::ANONYMOUS_GTID, vec![0; 25]),
            Mode::MariaDb => {
                let mut data = self.gno.to_le_bytes().to_vec();
                data.extend(0_u32.to_le_bytes());
                data.push(flags);
                if let Some(xid) = xid {
                    let name = xid.to_string();
                    let length = u8::try_from(name.len()).unwrap();
                    data.extend([1, 0, 0, 0, length, 0]);
                    data.extend(name.as_bytes());
                }
                (event_type::MARIADB_GTID, data)
            }
        };
        self.write(kind, data);
    }

    fn insert(&mut self, count: usize) -> Vec<i64> {
        let ids: Vec<i64> = (0..count)
            .map(|_| {
                self.rows += 1;
                self.rows
            })
            .collect();
        for some in ids.chunks(7) {
            self.write(event_type::TABLE_MAP, table_map("outbox_events"));
            self.write(event_type::WRITE_ROWS, rows(9, some));
        }
        ids
    }

    fn happens(&mut self, happening: &Happening) {
        match happening {
            Happening::Transaction(work, end) => self.transaction(work, *end),
            Happening::Large(rows) => self.transaction(&[Work::Rows(*rows)], End::Xid),
            Happening::Statement => {
                self.begin(1, None);
                self.write(event_type::QUERY, query("CREATE TABLE x (a INT)"));
            }
            Happening::Prepare(rows) => {
                self.begin(64, Some(self.gno + 1));
                let xid = self.gno;
                let name = hex(xid);
                self.write(event_type::QUERY, query(&format!("XA START {name}")));
                let ids = self.insert(*rows);
                self.write(event_type::QUERY, query(&format!("XA END {name}")));
                let text = xid.to_string();
                let length = u8::try_from(text.len()).unwrap();
                let mut data = vec![0, 1, 0, 0, 0, length, 0, 0, 0, 0, 0, 0, 0];
                data.extend(text.as_bytes());
                self.write(event_type::XA_PREPARE, data);
                self.prepared.push((xid, ids));
            }
            Happening::Decide(which, commit) => {
                if self.prepared.is_empty() {
                    return;
                }
                let (xid, ids) = self.prepared.remove(which % self.prepared.len());
                self.begin(128 | 1, Some(xid));
                let verb = if *commit { "COMMIT" } else { "ROLLBACK" };
                let sql = format!("XA {verb} {}", hex(xid));
                self.write(event_type::QUERY, query(&sql));
                if *commit {
                    self.committed.extend(ids);
                }
            }
            Happening::Rotate => {
                let next = file_name(self.file + 1);
                let data = [&4_u64.to_le_bytes()[..], next.as_bytes()].concat();
                self.log(event_type::ROTATE, data, None);
                self.file += 1;
                self.offset = 4;
            }
        }
    }

    fn transaction(&mut self, work: &[Work], end: End) {
        self.begin(0, None);
        if self.mode != Mode::MariaDb {
            self.write(event_type::QUERY, query("BEGIN"));
        }
        let mut ids = Vec::new();
        let mut savepoints: Vec<(u8, usize)> = Vec::new();
        for part in work {
            match part {
                Work::Rows(count) => ids.extend(self.insert(*count)),
                Work::Savepoint(name) => {
                    savepoints.retain(|(other, _)| other != name);
                    savepoints.push((*name, ids.len()));
                    let sql = format!("SAVEPOINT `s{name}`");
                    self.write(event_type::QUERY, query(&sql));
                }
                Work::RollbackTo(name) => {
                    let Some(at) = savepoints.iter().position(|(other, _)| other == name) else {
                        continue;
                    };
                    ids.truncate(savepoints[at].1);
                    savepoints.truncate(at + 1);
                    let sql = format!("ROLLBACK TO `s{name}`");
                    self.write(event_type::QUERY, query(&sql));
                }
                Work::Foreign => {
                    self.write(event_type::TABLE_MAP, table_map("orders"));
                    self.write(event_type::WRITE_ROWS, rows(10, &[-1, -2]));
                }
            }
        }
        match end {
            End::Xid => self.write(XID, vec![1, 0, 0, 0, 0, 0, 0, 0]),
            End::Commit => self.write(event_type::QUERY, query("COMMIT")),
            End::Rollback => self.write(event_type::QUERY, query("ROLLBACK")),
        }
        if end != End::Rollback {
            self.committed.extend(ids);
        }
    }

    /// Where the history begins.
    fn start(&self) -> Position {
        match self.mode {
            Mode::Gtid => Position::Gtid(GtidSet::default()),
            Mode::MariaDb => Position::MariaDb(BTreeMap::new()),
            Mode::File => Position::File {
                file: file_name(0).into(),
                offset: 4,
            },
        }
    }

    /// What it sends to who asks for what is behind that position.
    fn stream(&self, position: &Position) -> Vec<Event> {
        let wanted = |event: &&Logged| match (position, event.gno) {
            (Position::Gtid(set), Some(gno)) => !set.contains(&Source::untagged(SID), gno, gno),
            (Position::MariaDb(domains), Some(gno)) => {
                domains.get(&0).is_none_or(|last| last.sequence < gno)
            }
            (Position::File { file, offset }, _) => {
                (file_name(event.file).as_str(), event.begin) >= (&**file, *offset)
            }
            (Position::Gtid(_) | Position::MariaDb(_), None) => true,
        };
        let (file, offset) = match position {
            Position::File { file, offset } => (file.to_string(), *offset),
            Position::Gtid(_) | Position::MariaDb(_) => {
                let first = self
                    .events
                    .iter()
                    .filter(|event| event.gno.is_some())
                    .find(wanted);
                (file_name(first.map_or(self.file, |event| event.file)), 4)
            }
        };
        let rotate = [&offset.to_le_bytes()[..], file.as_bytes()].concat();
        let behind = self
            .events
            .iter()
            .filter(|event| *file_name(event.file) >= *file)
            .filter(wanted);
        std::iter::once(event(event_type::ROTATE, &rotate, 0))
            .chain(behind.map(|logged| {
                event(
                    logged.kind,
                    &logged.data,
                    u32::try_from(logged.end).unwrap(),
                )
            }))
            .collect()
    }
}

fn hex(xid: u64) -> String {
    let bytes: String = xid
        .to_string()
        .bytes()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("X'{bytes}',X'',1")
}

fn event(kind: u8, data: &[u8], log_pos: u32) -> Event {
    let size = u32::try_from(19 + data.len()).unwrap();
    let mut bytes = vec![1, 0, 0, 0, kind, 1, 0, 0, 0];
    bytes.extend(size.to_le_bytes());
    bytes.extend(log_pos.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(data);
    let format = FormatDescriptionEvent::new(BinlogVersion::Version4);
    Event::read(&format, &*bytes).unwrap()
}

fn config() -> Config {
    let variables = [
        ("RELAY_MYSQL_URL", "mysql://u:p@h/shop"),
        ("RELAY_AMQP_URL", "amqp://u:p@h"),
    ];
    let variables = variables
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    Config::from_raw(&Raw::load(None, variables, std::iter::empty()).unwrap()).unwrap()
}

/// A relay that reads a server's binlog.
struct Reading<'a> {
    server: &'a Binlog,
    config: Config,
    tail: Tail,
    /// Where this run began, and what it has read.
    checkpoint: Position,
    items: Vec<Item>,
    /// What each run has published.
    runs: Vec<Vec<i64>>,
}

impl<'a> Reading<'a> {
    fn new(server: &'a Binlog) -> Self {
        let config = config();
        let checkpoint = server.start();
        Self {
            server,
            tail: Tail::new(&config, checkpoint.clone()),
            config,
            checkpoint,
            items: Vec::new(),
            runs: vec![Vec::new()],
        }
    }

    /// Reads a stream from the tail's position, for so many events.
    fn read(&mut self, events: usize) {
        self.tail.follow(&Server {
            flavor: Flavor::MySql,
            version: String::new(),
            server_id: 1,
            gtid: true,
            folds_names: false,
        });
        for event in self.server.stream(self.tail.position()).iter().take(events) {
            let from = self.items.len();
            self.tail.feed(event, &mut self.items).unwrap();
            let run = self.runs.last_mut().unwrap();
            run.extend(self.items[from..].iter().filter_map(id));
        }
    }

    /// The checkpoint once all but the last `undecided` items are confirmed.
    fn confirmed(&self, undecided: usize) -> Position {
        let mut position = self.checkpoint.clone();
        let kept = self.items.len().saturating_sub(undecided);
        for item in &self.items[..kept] {
            if let Item::Commit { step, .. } = item {
                position.advance(Step::clone(step));
            }
        }
        position
    }

    fn cut(&mut self, crash: Option<usize>) {
        let Some(undecided) = crash else {
            self.tail.interrupted();
            return;
        };
        self.checkpoint = self.confirmed(undecided);
        self.items.clear();
        self.tail = Tail::new(&self.config, self.checkpoint.clone());
        self.runs.push(Vec::new());
    }
}

fn id(item: &Item) -> Option<i64> {
    match item {
        Item::Event(event) => match event.id {
            Key::Int(id) => Some(id),
            Key::UInt(_) | Key::Uuid(_) | Key::Text(_) => None,
        },
        Item::Commit { .. } => None,
    }
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        3 => (1_usize..12).prop_map(Work::Rows),
        1 => (0_u8..3).prop_map(Work::Savepoint),
        1 => (0_u8..3).prop_map(Work::RollbackTo),
        1 => Just(Work::Foreign),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let end = prop_oneof![3 => Just(End::Xid), 1 => Just(End::Commit), 1 => Just(End::Rollback)];
    prop_oneof![
        6 => (prop::collection::vec(work(), 0..8), end).prop_map(|(work, end)| Happening::Transaction(work, end)),
        1 => (250_usize..600).prop_map(Happening::Large),
        1 => Just(Happening::Statement),
        2 => (1_usize..5).prop_map(Happening::Prepare),
        2 => (0_usize..4, any::<bool>()).prop_map(|(which, commit)| Happening::Decide(which, commit)),
        1 => Just(Happening::Rotate),
    ]
}

fn cut() -> impl Strategy<Value = Cut> {
    (1_usize..250, prop::option::of(0_usize..40)).prop_map(|(events, crash)| Cut { events, crash })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_history_is_read_whole_and_in_order(
        mode in prop_oneof![Just(Mode::Gtid), Just(Mode::File), Just(Mode::MariaDb)],
        history in prop::collection::vec(happening(), 1..20),
        cuts in prop::collection::vec(cut(), 0..8),
    ) {
        let server = Binlog::new(mode, &history);
        let mut reading = Reading::new(&server);
        for cut in &cuts {
            reading.read(cut.events);
            reading.cut(cut.crash);
        }
        reading.read(usize::MAX);

        let places: HashMap<i64, usize> = server.committed.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let mut first = Vec::new();
        let mut seen = HashSet::new();
        for run in &reading.runs {
            let mut last = None;
            for id in run {
                let at = places.get(id).copied();
                prop_assert!(at.is_some(), "{} was not committed", id);
                prop_assert!(last < at, "{} came again in one run, or out of order", id);
                last = at;
                if seen.insert(*id) {
                    first.push(*id);
                }
            }
        }
        prop_assert_eq!(&first, &server.committed);
        if server.prepared.is_empty() {
            // All is confirmed: nothing is left to read.
            reading.cut(Some(0));
            reading.read(usize::MAX);
            prop_assert_eq!(reading.runs.last().map(Vec::len), Some(0));
        }
    }
}
