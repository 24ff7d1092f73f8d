//! Sets of MySQL GTIDs, tagged ones too (MySQL manual, "GTID Format and Storage").

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{PositionError, not_a};

/// Who numbered a transaction: a server uuid, and a tag where it was committed under one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    uuid: [u8; 16],
    tag: Option<Arc<str>>,
}

impl Source {
    /// A server's plain GTIDs.
    pub fn untagged(uuid: [u8; 16]) -> Self {
        Self { uuid, tag: None }
    }

    /// A server's GTIDs under a tag.
    pub fn tagged(uuid: [u8; 16], tag: &str) -> Self {
        Self {
            uuid,
            tag: Some(tag.into()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.uuid.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        match &self.tag {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

/// The GTIDs of one source, as the replication protocol wants them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block<'a> {
    /// Server uuid.
    pub uuid: [u8; 16],
    /// Tag, if they have one.
    pub tag: Option<&'a str>,
    /// Half-open intervals `[first, last + 1)`.
    pub intervals: Vec<(u64, u64)>,
}

/// Closed intervals of transaction numbers by source; sorted, apart from each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GtidSet(BTreeMap<Source, Vec<(u64, u64)>>);

impl GtidSet {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds transactions `first..=last`.
    pub fn insert(&mut self, source: Source, first: u64, last: u64) {
        let intervals = self.0.entry(source).or_default();
        if let Some(end) = intervals.last_mut()
            && end.0 <= first
            && first <= end.1.saturating_add(1)
        {
            end.1 = end.1.max(last);
            return;
        }
        let from = intervals.partition_point(|(_, end)| end.saturating_add(1) < first);
        let to = intervals.partition_point(|(start, _)| *start <= last.saturating_add(1));
        let touched = intervals.get(from..to).unwrap_or_default();
        let start = touched
            .first()
            .map_or(first, |(start, _)| (*start).min(first));
        let end = touched.last().map_or(last, |(_, end)| (*end).max(last));
        intervals.splice(from..to.max(from), [(start, end)]);
    }

    /// Whether it holds all of `first..=last`.
    pub fn contains(&self, source: &Source, first: u64, last: u64) -> bool {
        let Some(intervals) = self.0.get(source) else {
            return false;
        };
        let at = intervals.partition_point(|(_, end)| *end < first);
        intervals
            .get(at)
            .is_some_and(|(start, end)| *start <= first && last <= *end)
    }

    /// Whether it holds all of another set.
    pub fn contains_set(&self, other: &GtidSet) -> bool {
        other.0.iter().all(|(source, intervals)| {
            intervals
                .iter()
                .all(|(first, last)| self.contains(source, *first, *last))
        })
    }

    /// One block a source, for the replication request.
    pub fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        self.0.iter().map(|(source, intervals)| Block {
            uuid: source.uuid,
            tag: source.tag.as_deref(),
            intervals: intervals
                .iter()
                .map(|(first, last)| (*first, last.saturating_add(1)))
                .collect(),
        })
    }
}

impl fmt::Display for GtidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (source, intervals)) in self.0.iter().enumerate() {
            if nth > 0 {
                f.write_str(",")?;
            }
            source.fmt(f)?;
            for (first, last) in intervals {
                if first == last {
                    write!(f, ":{first}")?;
                } else {
                    write!(f, ":{first}-{last}")?;
                }
            }
        }
        Ok(())
    }
}

impl FromStr for GtidSet {
    type Err = PositionError;

    /// Reads `uuid:1-5:7:tag:1-3,uuid:…`, with line breaks as the server prints them.
    fn from_str(text: &str) -> Result<Self, PositionError> {
        let wrong = || not_a("GTID set (uuid:1-5:tag:1-3,…)", text);
        let mut set = Self::default();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let mut pieces = part.split(':').map(str::trim);
            let uuid = pieces.next().and_then(parse_uuid).ok_or_else(wrong)?;
            let mut source = Source::untagged(uuid);
            let mut any = false;
            for piece in pieces {
                any = true;
                if piece.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                    source = Source::tagged(uuid, &piece.to_ascii_lowercase());
                    continue;
                }
                let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
                let first: u64 = first.parse().map_err(|_| wrong())?;
                let last: u64 = last.parse().map_err(|_| wrong())?;
                if first == 0 || last < first {
                    return Err(wrong());
                }
                set.insert(source.clone(), first, last);
            }
            if !any {
                return Err(wrong());
            }
        }
        Ok(set)
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let mut uuid = [0; 16];
    let mut digits = text.bytes().filter(|byte| *byte != b'-');
    for byte in &mut uuid {
        let high = char::from(digits.next()?).to_digit(16)?;
        let low = char::from(digits.next()?).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    digits.next().is_none().then_some(uuid)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    #[test]
    fn text_of_the_server_is_read_and_written() {
        for text in [
            format!("{UUID}:1-5"),
            format!("{UUID}:1-5:7"),
            format!("{UUID}:1-5,{UUID}:tag:1-3"),
            String::new(),
        ] {
            let set: GtidSet = text.parse().unwrap();
            assert_eq!(set.to_string(), text);
        }
        let joined: GtidSet = format!("{UUID}:1-7058:tag:1,\n{UUID}:9000")
            .parse()
            .unwrap();
        assert_eq!(
            joined.to_string(),
            format!("{UUID}:1-7058:9000,{UUID}:tag:1")
        );
        for bad in [
            "x",
            UUID,
            "3e11fa47:1",
            &format!("{UUID}:0"),
            &format!("{UUID}:5-1"),
        ] {
            assert!(bad.parse::<GtidSet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn blocks_are_half_open_and_one_a_tag() {
        let set: GtidSet = format!("{UUID}:1-5:7:tag:1").parse().unwrap();
        let blocks: Vec<_> = set
            .blocks()
            .map(|block| (block.tag, block.intervals))
            .collect();
        assert_eq!(
            blocks,
            [(None, vec![(1, 6), (7, 8)]), (Some("tag"), vec![(1, 2)])]
        );
    }

    proptest! {
        #[test]
        fn intervals_are_a_set_of_numbers(runs in prop::collection::vec((1u64..60, 0u64..8), 0..40)) {
            let source = Source::untagged([1; 16]);
            let (mut set, mut model) = (GtidSet::default(), BTreeSet::new());
            for (first, more) in runs {
                set.insert(source.clone(), first, first + more);
                model.extend(first..=first + more);
            }
            for number in 0..80 {
                prop_assert_eq!(set.contains(&source, number, number), model.contains(&number));
            }
            let again: GtidSet = set.to_string().parse().unwrap();
            prop_assert_eq!(&again, &set);
            if let Some(intervals) = set.0.get(&source) {
                prop_assert!(intervals.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{}", set);
            }
        }
    }
}
