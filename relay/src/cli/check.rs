//! `relay check`.

use anyhow::ensure;
use clap::{ArgMatches, Command};

use super::print;
use crate::config::Config;
use crate::preflight::{self, Finding, Verdict};

const AFTER_HELP: &str = "\
Nothing is published and no row is changed. Where topology = declare and the exchange is not there, it is declared, as `relay run` \
does. What is found is told line by line: ok, warning, or FAILED with the statement or setting that mends it.

Exit codes: 0 nothing failed, 1 something failed, 2 wrong usage or configuration.";

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Look at everything that `relay run` needs of MySQL and RabbitMQ, and say what is missing")
        .after_help(AFTER_HELP)
        .arg(print::json_flag())
}

/// Prints what is found; an error if something failed.
pub(super) fn main(config: &Config, arguments: &ArgMatches) -> anyhow::Result<()> {
    let report = super::run::runtime()?.block_on(preflight::run(config));
    let failed = report.count(Verdict::Failed);
    if arguments.get_flag("json") {
        print::json(&report.findings())?;
    } else {
        let findings = report.findings();
        let widths = findings.iter().map(|finding| finding.check.chars().count());
        let width = widths.max().unwrap_or(0);
        for finding in findings {
            print::line(&lines(finding, width))?;
        }
        print::line(&format!(
            "{} ok, {} warnings, {failed} failed",
            report.count(Verdict::Ok),
            report.count(Verdict::Warning)
        ))?;
    }
    ensure!(failed == 0, "{failed} checks failed");
    Ok(())
}

fn lines(finding: &Finding, width: usize) -> String {
    let verdict = match finding.result {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Failed => "FAILED",
    };
    let (check, found) = (print::plain(&finding.check), print::plain(&finding.found));
    let line = format!("{verdict:7}  {check:width$}  {found}");
    match &finding.mend {
        Some(mend) => format!("{line}\n         mend: {}", print::plain(mend)),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_with_what_mends_it_below() {
        let finding = Finding {
            check: "log_bin".to_owned(),
            result: Verdict::Failed,
            found: "OFF\u{1b}[2J".to_owned(),
            mend: Some("turn it on".to_owned()),
        };
        assert_eq!(
            lines(&finding, 9),
            "FAILED   log_bin    OFF [2J\n         mend: turn it on"
        );
    }
}
