//! `relay config`.

use anyhow::Context as _;
use clap::{ArgMatches, Command};
use serde::Serialize;

use super::print;
use crate::config::settings::{SETTINGS, Setting};
use crate::config::{Config, Origin, Raw};

pub(super) fn command() -> Command {
    Command::new("config")
        .about("Show the value of every setting and where it came from; passwords are left out")
        .arg(print::json_flag())
}

/// The value of one setting in force.
#[derive(Debug, Serialize)]
struct Effective {
    key: &'static str,
    /// None where nothing is set, and nothing stands in for it.
    value: Option<String>,
    origin: &'static str,
    /// The file, the variable, the flag, or what the value is derived from.
    from: Option<String>,
}

/// Prints what is in force.
pub(super) fn main(raw: &Raw, arguments: &ArgMatches) -> anyhow::Result<()> {
    let config = Config::from_raw(raw)?;
    let all: Vec<Effective> = SETTINGS
        .iter()
        .map(|setting| effective(setting, raw, &config))
        .collect();
    if arguments.get_flag("json") {
        return print::json(&all);
    }
    let width = all.iter().map(|one| one.key.len()).max().unwrap_or(0);
    for one in all {
        print::line(&one.line(width)?)?;
    }
    Ok(())
}

impl Effective {
    fn line(&self, width: usize) -> anyhow::Result<String> {
        // As TOML writes it, but for what is not set.
        let value = match &self.value {
            Some(text) => serde_json::to_string(text).context("cannot quote a value")?,
            None => "(not set)".to_owned(),
        };
        let from = match &self.from {
            Some(from) => format!("{}: {}", self.origin, print::plain(from)),
            None => self.origin.to_owned(),
        };
        Ok(format!("{:width$} = {value}  # {from}", self.key))
    }
}

fn effective(setting: &Setting, raw: &Raw, config: &Config) -> Effective {
    let (text, origin) = raw.get(setting.key).unzip();
    let (kind, from) = match origin {
        None | Some(Origin::Default) => ("default", None),
        Some(Origin::File(path)) => ("file", Some(path.display().to_string())),
        Some(Origin::Variable(name)) => ("variable", Some(name)),
        Some(Origin::Flag(flag)) => ("flag", Some(format!("--{flag}"))),
    };
    let derived = |value: String, of: &str| Effective {
        key: setting.key,
        value: Some(value),
        origin: "default",
        from: Some(format!("derived from {of}")),
    };
    if text.is_none() {
        if setting.key == "server_id" {
            return derived(config.server_id.to_string(), "name");
        }
        if let Some(column) = config.columns.of_setting(setting.key) {
            return derived(column.as_str().to_owned(), "preset");
        }
    }
    let value = match setting.key {
        "mysql_url" => Some(config.mysql.to_string()),
        "amqp_url" => Some(config.amqp.to_string()),
        // A secret that has no form to be shown in.
        _ if setting.secret => text.map(|_| "(hidden)".to_owned()),
        _ => text,
    };
    Effective {
        key: setting.key,
        value,
        origin: kind,
        from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_shown_with_its_origin_and_without_passwords() {
        let file = std::env::temp_dir().join(format!("relay-config-{}.toml", fastrand::u64(..)));
        std::fs::write(&file, "mark_interval = \"3s\"\n").unwrap();
        let variables = [
            ("RELAY_MYSQL_URL", "mysql://u:s3cr3t@h:1/d"),
            ("RELAY_AMQP_URL", "amqp://u:s3cr3t@h:2/%2f"),
            ("RELAY_WINDOW", "7"),
        ];
        let variables = variables.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let flags = [("mark", "none".to_owned())];
        let raw = Raw::load(Some(&file), variables.into_iter(), flags.into_iter()).unwrap();
        std::fs::remove_file(&file).unwrap();
        let config = Config::from_raw(&raw).unwrap();
        let lines: Vec<String> = SETTINGS
            .iter()
            .map(|setting| effective(setting, &raw, &config).line(0).unwrap())
            .collect();
        let text = lines.join("\n");
        assert_eq!(lines.len(), SETTINGS.len());
        assert!(!text.contains("s3cr3t"), "{text}");
        for line in [
            "mysql_url = \"mysql://u@h:1/d\"  # variable: RELAY_MYSQL_URL".to_owned(),
            "window = \"7\"  # variable: RELAY_WINDOW".to_owned(),
            "mark = \"none\"  # flag: --mark".to_owned(),
            format!("mark_interval = \"3s\"  # file: {}", file.display()),
            "claim_batch = \"500\"  # default".to_owned(),
            "column_status = \"status\"  # default: derived from preset".to_owned(),
            "column_exchange = (not set)  # default".to_owned(),
            format!(
                "server_id = \"{}\"  # default: derived from name",
                config.server_id
            ),
        ] {
            assert!(lines.contains(&line), "no {line:?} in {text}");
        }
    }
}
