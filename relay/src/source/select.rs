//! Rows of the outbox table by query: the same values as the binlog would give.

use mysql_async::{Params, Row as Answer, Value};

use crate::catalogue::{Catalogue, Fields, Finish, MissingColumn};
use crate::config::Config;
use crate::event::{Datum, FIELDS, OutboxEvent, Row};

/// The columns to select, and how to read them.
#[derive(Debug, Clone)]
pub(super) struct Select {
    /// Between SELECT and FROM.
    pub(super) list: String,
    present: [bool; FIELDS.len()],
    finish: Finish,
}

impl Select {
    /// For the table as it is now.
    pub(super) fn new(config: &Config, catalogue: &Catalogue) -> Result<Self, MissingColumn> {
        let names = catalogue.columns.iter().map(|column| column.name.as_str());
        let fields = Fields::locate(&config.columns, names)?;
        let finish = Finish::new(&fields, catalogue, &config.columns);
        let mut present = [false; FIELDS.len()];
        let mut list = Vec::new();
        let places = fields.places().iter().zip(config.columns.names());
        for (at, (present, (place, name))) in present.iter_mut().zip(places).enumerate() {
            if let (Some(_), Some(name)) = (place, name)
                && !finish.is_twin(at)
            {
                *present = true;
                list.push(name.quoted());
            }
        }
        Ok(Self {
            list: list.join(", "),
            present,
            finish,
        })
    }

    /// The event of a row, unless its status says that it is none.
    pub(super) fn event(&self, answer: Answer) -> Option<OutboxEvent> {
        let mut values = answer.unwrap_raw().into_iter();
        let mut row: Row = [const { Datum::Null }; FIELDS.len()];
        for (datum, present) in row.iter_mut().zip(self.present) {
            if present {
                *datum = values.next().flatten().map_or(Datum::Null, datum_of);
            }
        }
        self.finish.apply(&mut row);
        OutboxEvent::from_row(row)
    }
}

/// Parameters in their order; a statement without any is not to be given an empty list.
pub(super) fn positional(values: Vec<Value>) -> Params {
    if values.is_empty() {
        Params::Empty
    } else {
        Params::Positional(values)
    }
}

/// A value of a query as the binlog would give it.
fn datum_of(value: Value) -> Datum {
    match value {
        Value::NULL => Datum::Null,
        Value::Bytes(bytes) => Datum::Bytes(bytes),
        Value::Int(number) => Datum::Int(number),
        Value::UInt(number) => Datum::UInt(number),
        Value::Float(number) => Datum::Bytes(number.to_string().into_bytes()),
        Value::Double(number) => Datum::Bytes(number.to_string().into_bytes()),
        Value::Date(year, month, day, hour, minute, second, micros) => {
            match days_from_civil(i64::from(year), i64::from(month), i64::from(day)) {
                Some(days) => {
                    let seconds = ((days * 24 + i64::from(hour)) * 60 + i64::from(minute)) * 60
                        + i64::from(second);
                    Datum::Micros(seconds * 1_000_000 + i64::from(micros))
                }
                None => Datum::Null,
            }
        }
        Value::Time(negative, days, hours, minutes, seconds, micros) => {
            let sign = if negative { "-" } else { "" };
            let hours = u32::from(hours) + days * 24;
            let text = format!("{sign}{hours:02}:{minutes:02}:{seconds:02}.{micros:06}");
            Datum::Bytes(text.into_bytes())
        }
    }
}

/// Days since 1970-01-01 (Hinnant, as in [`crate::event`]); none for a zero date.
fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    if month == 0 || day == 0 {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::rfc3339;

    proptest! {
        #[test]
        fn dates_and_back(
            year in 1i64..9999, month in 1i64..=12, day in 1i64..=28, hour in 0u8..24, micros in 0u32..1_000_000
        ) {
            let value = Value::Date(
                u16::try_from(year).unwrap(), u8::try_from(month).unwrap(), u8::try_from(day).unwrap(),
                hour, 59, 58, micros,
            );
            let Datum::Micros(count) = datum_of(value) else { panic!() };
            let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:59:58.{micros:06}Z");
            prop_assert_eq!(rfc3339(count), text);
        }
    }

    #[test]
    fn a_zero_date_is_no_date() {
        assert_eq!(datum_of(Value::Date(0, 0, 0, 0, 0, 0, 0)), Datum::Null);
    }
}
