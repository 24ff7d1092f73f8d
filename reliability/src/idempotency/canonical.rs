//! JSON in one form: no white space, keys sorted, texts escaped in one way, numbers as written.
//!
//! `serde_json` would read numbers into floats, and its raw values would be read again at each level of nesting.

/// Deeper documents count byte for byte.
const DEPTH_MAX: usize = 128;

/// The canonical form; nothing if `body` is not JSON, or too deep.
pub(super) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    // The grammar is checked there; here only the structure is followed.
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let mut reader = Reader { rest: body };
    let mut out = Vec::with_capacity(body.len());
    reader.value(&mut out, DEPTH_MAX)?;
    Some(out)
}

/// What is left of a document that is known to be JSON.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.take(1)?;
        Some(byte)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn value(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            b'{' => self.object(out, depth),
            b'[' => self.array(out, depth),
            b'"' => {
                out.extend(escaped(&self.text()?)?);
                Some(())
            }
            _ => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
                let length = self.rest.iter().position(ends);
                out.extend(self.take(length.unwrap_or(self.rest.len()))?);
                Some(())
            }
        }
    }

    fn array(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        out.push(self.next()?);
        loop {
            match self.peek()? {
                b']' => {
                    out.push(self.next()?);
                    return Some(());
                }
                b',' => out.push(self.next()?),
                _ => self.value(out, depth)?,
            }
        }
    }

    /// The members sorted by key; several of one key stay in their order, for some readers take the first and some the last.
    fn object(&mut self, out: &mut Vec<u8>, depth: usize) -> Option<()> {
        self.next()?;
        let mut members = Vec::new();
        loop {
            match self.peek()? {
                b'}' => break,
                b',' => {
                    self.next()?;
                }
                _ => {
                    let key = self.text()?;
                    self.next().filter(|byte| *byte == b':')?;
                    let mut value = Vec::new();
                    self.value(&mut value, depth)?;
                    members.push((key, value));
                }
            }
        }
        self.next()?;
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        out.push(b'{');
        for (number, (key, value)) in members.into_iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            out.extend(escaped(&key)?);
            out.push(b':');
            out.extend(value);
        }
        out.push(b'}');
        Some(())
    }

    fn text(&mut self) -> Option<String> {
        self.peek().filter(|byte| *byte == b'"')?;
        let mut escaped = false;
        let end = self.rest.iter().skip(1).position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        serde_json::from_slice(self.take(end + 2)?).ok()
    }
}

fn escaped(text: &str) -> Option<Vec<u8>> {
    serde_json::to_vec(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn text(body: &str) -> Option<String> {
        canonical(body.as_bytes()).map(|json| String::from_utf8(json).unwrap())
    }

    #[test]
    fn one_form() {
        for (body, form) in [
            (
                " { \"b\" : [ 1 , 2.50, { } , [ ] ] , \"a\" : null } ",
                r#"{"a":null,"b":[1,2.50,{},[]]}"#,
            ),
            (
                r#"{"\u0061":"\u041f\/","a":2,"A":3}"#,
                r#"{"A":3,"a":"П/","a":2}"#,
            ),
            ("1E5", "1E5"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (r#""a \"b\\""#, r#""a \"b\\""#),
            (r#"{"]":"}","{":"[,"}"#, r#"{"]":"}","{":"[,"}"#),
            ("\n true\t", "true"),
        ] {
            assert_eq!(text(body).as_deref(), Some(form), "{body}");
        }
        for body in [
            "",
            "{",
            "[1,]",
            "{\"a\":1}x",
            "{\"a\" 1}",
            "\u{feff}1",
            "\"\\ud800\"",
            "nul",
        ] {
            assert_eq!(text(body), None, "{body}");
        }
        assert_eq!(canonical(b"\"\xff\""), None);
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(text(&nested(DEPTH_MAX)), Some(nested(DEPTH_MAX)));
        assert_eq!(text(&nested(DEPTH_MAX + 1)), None);
        assert_eq!(text(&nested(1_000_000)), None);
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| map.into_iter().collect::<Value>()),
            ]
        })
    }

    proptest! {
        /// `serde_json`'s maps are sorted, so that its compact form is the canonical one.
        #[test]
        fn white_space_and_order_do_not_matter(value in json()) {
            let compact = serde_json::to_vec(&value).unwrap();
            prop_assert_eq!(canonical(&serde_json::to_vec_pretty(&value).unwrap()), Some(compact.clone()));
            prop_assert_eq!(canonical(&compact), Some(compact));
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..100), noise in "[\\[\\]{}:,\"\\\\0-9a ]{0,40}") {
            canonical(&bytes);
            canonical(noise.as_bytes());
        }
    }
}
