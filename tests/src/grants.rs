//! Accounts with the grants that the README prints, and no others: what it says is what the tests run with.

use anyhow::{Context as _, Result, ensure};
use reqwest::Url;

use crate::database::Database;

const README: &str = include_str!("../../README.md");

/// The heading over the grants.
const HEADING: &str = "\n### Grants\n";

/// The password in the README.
const PASSWORD: &str = "secret";

/// Whose grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `relay run`, `check`, `dlq` and `prune`.
    Relay,
    /// `relay migrate`.
    Migrate,
}

impl Role {
    /// The account's name in the README.
    fn name(self) -> &'static str {
        match self {
            Role::Relay => "relay",
            Role::Migrate => "relay_migrate",
        }
    }

    /// The README's statements for that account, each in a line.
    fn statements(self) -> Result<Vec<&'static str>> {
        let account = format!("'{}'@'%'", self.name());
        let (_, section) = README.split_once(HEADING).context("no grants")?;
        let section = section.split("\n#").next().unwrap_or_default();
        let block = section
            .split("```sql\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .find(|block| block.contains(&account))
            .with_context(|| format!("the README grants {account} nothing"))?;
        let lines = block.lines().map(|line| line.trim_end_matches(';'));
        Ok(lines.filter(|line| !line.is_empty()).collect())
    }
}

/// An account on a database's server.
#[derive(Debug)]
pub struct Account {
    user: String,
    url: Url,
}

impl Account {
    /// Creates it as the README says, for that database.
    ///
    /// # Errors
    /// The server refuses a statement of the README.
    pub async fn create(database: &Database, role: Role) -> Result<Self> {
        let user = match role {
            Role::Relay => database.name().to_owned(),
            Role::Migrate => format!("{}_m", database.name()),
        };
        let mut url = database.url().clone();
        let named = url.set_username(&user).is_ok() && url.set_password(Some(PASSWORD)).is_ok();
        ensure!(named, "{url} takes no account");
        let account = Self { user, url };
        for statement in role.statements()? {
            account.run(database, role, statement).await?;
        }
        Ok(account)
    }

    /// Gives the relay the same on a table of another name as on `outbox_events`.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn grant_on(&self, database: &Database, table: &str) -> Result<()> {
        for statement in Role::Relay.statements()? {
            if statement.contains("shop.outbox_events") {
                let statement = statement.replace("outbox_events", table);
                self.run(database, Role::Relay, &statement).await?;
            }
        }
        Ok(())
    }

    async fn run(&self, database: &Database, role: Role, statement: &str) -> Result<()> {
        let statement = statement
            .replace(&format!("'{}'@'%'", role.name()), &self.name())
            .replace(" shop.", &format!(" `{}`.", database.name()));
        database
            .execute(&statement)
            .await
            .with_context(|| format!("the README's grant fails: {statement}"))
    }

    /// As statements name it.
    pub fn name(&self) -> String {
        format!("'{}'@'%'", self.user)
    }

    /// Its address of the database, password and all.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Drops it.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn drop(&self, database: &Database) -> Result<()> {
        let statement = format!("DROP USER IF EXISTS {}", self.name());
        database.execute(&statement).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_grants_each_role_something() {
        for role in [Role::Relay, Role::Migrate] {
            let statements = role.statements().unwrap();
            assert!(statements.len() > 1, "{statements:?}");
            for statement in statements {
                let known = ["GRANT ", "CREATE USER "];
                assert!(
                    known.iter().any(|word| statement.starts_with(word)),
                    "{statement}"
                );
                assert!(statement.contains(role.name()), "{statement}");
            }
        }
    }
}
