//! The facts of the book in a file, one JSON object a line.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use thiserror::Error;

use super::book::{Book, Fact, Impossible};

/// A file that facts are appended to. What `append` has returned for survives the process, not the machine.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// How far the file is good.
    length: u64,
    /// Whether there may be a part of a line behind that.
    torn: bool,
}

/// A line that is no fact, or a fact that can't be.
#[derive(Debug, Error)]
pub(super) enum BadLine {
    #[error("line {line} is not a fact")]
    Unreadable {
        line: usize,
        #[source]
        error: serde_json::Error,
    },
    #[error("line {line} contradicts those before it")]
    Impossible {
        line: usize,
        #[source]
        error: Impossible,
    },
}

impl Journal {
    /// Opens or creates the file, for this process alone, and reads what is in it.
    pub(super) fn open(path: &Path) -> Result<(Self, Book)> {
        let shown = path.display();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot open the state file {shown}"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("the state file {shown} is used by another process; give each its own")
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock the state file {shown}"));
            }
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .with_context(|| format!("cannot read the state file {shown}"))?;
        let (book, length) = replay(&bytes).with_context(|| {
            format!("the state file {shown} is damaged; move it away to begin anew")
        })?;
        let length = u64::try_from(length).context("the state file is too long")?;
        let torn = length < u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let journal = Self {
            path: path.to_owned(),
            file,
            length,
            torn,
        };
        Ok((journal, book))
    }

    /// Writes a fact behind the others; after an error it is not there.
    pub(super) fn append(&mut self, fact: &Fact) -> Result<()> {
        let mut line = serde_json::to_vec(fact).context("cannot write a fact")?;
        line.push(b'\n');
        self.write(&line)
            .with_context(|| format!("cannot write to the state file {}", self.path.display()))
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.length)?;
        }
        self.torn = true;
        self.file.write_all(line)?;
        self.torn = false;
        self.length += u64::try_from(line.len()).unwrap_or(0);
        Ok(())
    }
}

/// The book of these lines, and how many bytes of them count: a last line without its end was never answered for.
fn replay(bytes: &[u8]) -> Result<(Book, usize), BadLine> {
    let mut book = Book::default();
    let mut length = 0;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    for (line, text) in (1..).zip(lines.filter(|text| text.ends_with(b"\n"))) {
        let fact =
            serde_json::from_slice(text).map_err(|error| BadLine::Unreadable { line, error })?;
        book.apply(fact)
            .map_err(|error| BadLine::Impossible { line, error })?;
        length += text.len();
    }
    Ok((book, length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::book::{Request, Service};
    use super::*;

    fn done(key: &str) -> Fact {
        Fact::Done {
            service: Service::Payment,
            key: key.to_owned(),
            request: Request {
                order_id: 1,
                amount_cents: Some(15),
            },
        }
    }

    fn file(name: &str) -> (tempfile::TempDir, PathBuf) {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join(name);
        (room, path)
    }

    #[test]
    fn what_was_appended_is_there_at_the_next_start() {
        let (_room, path) = file("state");
        let (mut journal, mut book) = Journal::open(&path).unwrap();
        for key in ["a", "b"] {
            journal.append(&done(key)).unwrap();
            book.apply(done(key)).unwrap();
        }
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().1, book);
    }

    #[test]
    fn a_torn_last_line_is_dropped_and_overwritten() {
        let (_room, path) = file("state");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.append(&done("a")).unwrap();
        drop(journal);
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(b"{\"fact\":\"do");
        std::fs::write(&path, &text).unwrap();
        let (mut journal, book) = Journal::open(&path).unwrap();
        assert!(book.entry(Service::Payment, "a").is_some());
        journal.append(&done("b")).unwrap();
        drop(journal);
        let (_, book) = Journal::open(&path).unwrap();
        assert!(book.entry(Service::Payment, "b").is_some());
    }

    #[test]
    fn damage_is_named_and_a_second_process_kept_out() {
        let (_room, path) = file("state");
        std::fs::write(&path, b"{}\n").unwrap();
        let error = format!("{:#}", Journal::open(&path).unwrap_err());
        assert!(
            error.contains("line 1") && error.contains("state"),
            "{error}"
        );
        std::fs::write(&path, b"").unwrap();
        let _held = Journal::open(&path).unwrap();
        let error = format!("{:#}", Journal::open(&path).unwrap_err());
        assert!(error.contains("another process"), "{error}");
    }

    proptest! {
        /// Wherever the file ends, what is read is the book of the facts that are whole.
        #[test]
        fn any_beginning_of_the_file_is_a_book(
            calls in proptest::collection::vec((0_u8..4, any::<bool>()), 1..20), share in 0.0_f64..=1.0,
        ) {
            let (mut book, mut text, mut books) = (Book::default(), Vec::new(), vec![]);
            for (key, undo) in calls {
                let key = format!("k{key}\n\"");
                let request = Request { order_id: 1, amount_cents: None };
                let fact = if undo {
                    book.undo(Service::Shipment, &key)
                } else {
                    book.forward(Service::Shipment, &key, &request).unwrap_or(None)
                };
                if let Some(fact) = fact {
                    serde_json::to_writer(&mut text, &fact).unwrap();
                    text.push(b'\n');
                    book.apply(fact).unwrap();
                    books.push((text.len(), book.clone()));
                }
            }
            let end = usize::try_from((share * 10_000.0) as u64).unwrap() * text.len() / 10_000;
            let (length, expected) = books
                .into_iter().rev().find(|(length, _)| *length <= end).unwrap_or_default();
            let (read, good) = replay(&text[..end]).unwrap();
            prop_assert_eq!((read, good), (expected, length));
        }
    }
}
