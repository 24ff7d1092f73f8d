//! What a request is answered with, first and again.

/// An answer: status, headers and body, byte for byte.
///
/// ```
/// use reliability::idempotency::Answer;
///
/// let answer = Answer::new(201, r#"{"id":17}"#)
///     .with_header("content-type", "application/json")
///     .with_header("location", "/invoices/17");
/// assert_eq!((answer.status(), answer.header("Location")), (201, Some("/invoices/17")));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    /// An answer without headers.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// With one more header. Only those that [`Settings::headers`](super::Settings::headers) names are replayed.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// HTTP's status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Names and values, in order.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The first value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let is = |(known, _): &&(String, String)| known.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .find(is)
            .map(|(_, value)| value.as_str())
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body alone.
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }
}
