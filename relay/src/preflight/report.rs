//! What was found (pure).

use serde::Serialize;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The relay works, but less well than it could, or this could not be looked at.
    Warning,
    /// The relay does not work like this.
    Failed,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// How it came out.
    pub result: Verdict,
    /// What was found.
    pub found: String,
    /// The statement, command or setting that mends it.
    pub mend: Option<String>,
}

/// Everything that was looked at, in order.
#[derive(Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// All of it.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// How many came out like that.
    pub fn count(&self, verdict: Verdict) -> usize {
        let like = |finding: &&Finding| finding.result == verdict;
        self.findings.iter().filter(like).count()
    }

    pub(super) fn ok(&mut self, check: impl Into<String>, found: impl Into<String>) {
        self.add(check, Verdict::Ok, found, None);
    }

    pub(super) fn warn(
        &mut self,
        check: impl Into<String>,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(check, Verdict::Warning, found, Some(mend.into()));
    }

    pub(super) fn failed(
        &mut self,
        check: impl Into<String>,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.add(check, Verdict::Failed, found, Some(mend.into()));
    }

    pub(super) fn add(
        &mut self,
        check: impl Into<String>,
        result: Verdict,
        found: impl Into<String>,
        mend: Option<String>,
    ) {
        self.findings.push(Finding {
            check: check.into(),
            result,
            found: found.into(),
            mend,
        });
    }
}
