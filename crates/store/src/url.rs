//! Database URLs and options.

use crate::security::MAX_SETS;
use crate::{Result, StoreError};
use sluice_types::Vni;
use sqlx::postgres::PgConnectOptions;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// Options that the URL does not contain.
#[derive(Clone, Debug)]
pub struct Options {
    /// VNIs allocated to VPCs that do not request one. A VPC may request a VNI outside this range.
    pub vnis: RangeInclusive<u32>,
    /// Highest identity of a set of security groups; each VPC has its own identities, from 1.
    pub max_identity: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self { vnis: 1..=Vni::MAX, max_identity: MAX_SETS }
    }
}

/// Location of a database.
pub(crate) enum Location {
    File(PathBuf),
    /// A temporary database for tests, deleted with the store.
    Memory,
    Postgres(Box<PgConnectOptions>),
}

pub(crate) fn parse(url: &str) -> Result<Location> {
    let bad = || StoreError::BadUrl(without_secrets(url));
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        let options = PgConnectOptions::from_str(url).map_err(|_| bad())?;
        return Ok(Location::Postgres(Box::new(options)));
    }
    let path = url.strip_prefix("sqlite:").ok_or_else(bad)?;
    let path = path.strip_prefix("//").unwrap_or(path);
    match path {
        "" => Err(bad()),
        ":memory:" => Ok(Location::Memory),
        path if path.contains('?') => Err(bad()),
        path => Ok(Location::File(path.into())),
    }
}

/// The URL as far as it can be shown: without user, password and parameters, wherever a wrong URL has them.
fn without_secrets(url: &str) -> String {
    let (front, back) = url.rsplit_once('@').map_or((None, url), |(front, back)| (Some(front), back));
    let back = back.split_once('?').map_or(back.to_owned(), |(back, _)| format!("{back}?***"));
    match front {
        Some(front) => format!("{}***@{back}", front.find("://").map_or("", |at| &front[..at + 3])),
        None => back,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_or_refused() {
        assert!(
            matches!(parse("sqlite:/var/lib/sluice/db"), Ok(Location::File(p)) if p.as_os_str() == "/var/lib/sluice/db")
        );
        assert!(matches!(parse("sqlite://cloud.db"), Ok(Location::File(p)) if p.as_os_str() == "cloud.db"));
        assert!(matches!(parse("sqlite::memory:"), Ok(Location::Memory)));
        assert!(matches!(parse("postgres://sluice@db/cloud"), Ok(Location::Postgres(_))));
        for url in ["", "sqlite:", "mysql://x", "cloud.db", "sqlite:x?mode=ro"] {
            assert!(matches!(parse(url), Err(StoreError::BadUrl(_))), "{url}");
        }
    }

    #[test]
    fn error_for_a_bad_url_does_not_contain_the_password() {
        for url in [
            "mysql://u:secret@h/d",
            "postgres:/u:secret@h/d",
            "postgres://u:se@secret@h:x/d",
            "postgres://h:x/d?password=secret",
        ] {
            let Err(error) = parse(url) else { panic!("{url} was parsed") };
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
