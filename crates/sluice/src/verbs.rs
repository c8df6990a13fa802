//! What the verbs of all nouns share.

use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use sluice_client::{Client, Created, NewObject, Resource};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long to wait for nodes.
#[derive(Args)]
pub struct Wait {
    /// Wait until every node that needs it has it, at most so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "30")]
    wait: Option<u64>,
}

/// Which one.
#[derive(Args)]
pub struct Which {
    /// Name or id
    #[arg(value_name = "NAME|ID")]
    pub which: String,
}

/// Guard against changing what someone else has changed.
#[derive(Args)]
pub struct Expect {
    /// Only if it is at this revision still
    #[arg(long, value_name = "REVISION")]
    pub if_revision: Option<u64>,
}

/// How many to list.
#[derive(Args)]
pub struct Limit {
    /// Only those of this name
    #[arg(long)]
    pub name: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// Where an enrolment bundle goes.
#[derive(Args)]
pub struct Enrol {
    #[command(flatten)]
    pub which: Which,
    /// File to write, readable by its owner alone
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Lists what the filters let through.
pub async fn list<T: Resource>(
    api: &ApiArgs,
    columns: &[&str],
    filters: &[(&str, Option<String>)],
    limit: Limit,
) -> Result<(), Failure> {
    let mut given: Vec<(&str, &str)> =
        filters.iter().filter_map(|(key, value)| value.as_deref().map(|value| (*key, value))).collect();
    given.extend(limit.name.as_deref().map(|name| ("name", name)));
    let objects: Vec<T> = api.client()?.list(&given, limit.limit).await?;
    output::list(api.output, columns, &objects)
}

/// Creates, waits if asked to, prints.
pub async fn create<B: NewObject>(
    api: &ApiArgs,
    client: &Client,
    parent: B::Parent,
    body: &B,
    wait: Wait,
) -> Result<(), Failure> {
    let Created { object, created } = client.create(parent, body).await?;
    if !created {
        eprintln!("{} `{}` was there already, the same", B::Object::NOUN, object.name());
    }
    let object = match wait.wait {
        Some(seconds) => client.wait_programmed(object.id(), Duration::from_secs(seconds)).await?,
        None => object,
    };
    output::one(api.output, &object)
}

/// Waits if asked to, until an object is as it shall be and programmed; prints it.
pub async fn settle<T: Resource>(
    api: &ApiArgs,
    client: &Client,
    object: T,
    wait: Wait,
    fits: impl Fn(&T) -> bool,
) -> Result<(), Failure> {
    let object = match wait.wait {
        Some(seconds) => client.wait_until(object.id(), Duration::from_secs(seconds), fits).await?,
        None => object,
    };
    output::one(api.output, &object)
}

/// Deletes and says what.
pub async fn delete<T: Resource>(client: &Client, object: &T, expect: Expect) -> Result<(), Failure> {
    client.delete::<T>(object.id(), expect.if_revision).await?;
    eprintln!("deleted {} `{}` ({})", T::NOUN, object.name(), object.id());
    Ok(())
}

/// Writes an enrolment bundle.
pub async fn enrol<T: Resource>(api: &ApiArgs, args: Enrol) -> Result<(), Failure> {
    let client = api.client()?;
    let object: T = client.find(&args.which.which, &[]).await?;
    let bundle = client.enrol::<T>(object.id()).await?;
    let text = serde_json::to_string_pretty(&bundle)
        .map_err(|error| Failure::Usage(format!("cannot print: {error}")))?;
    write_secret(&args.out, &(text + "\n"))?;
    eprintln!(
        "{} `{}`: wrote {}; copy it to the node and start the agent there with --enrolment",
        T::NOUN,
        object.name(),
        args.out.display()
    );
    Ok(())
}

/// A new file that only its owner can read; one that is there is not followed or widened.
fn write_secret(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |source| Failure::File { what: format!("cannot write {}", path.display()), source };
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn secrets_are_the_owners_alone_and_never_overwrite() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.json");
        write_secret(&path, "secret").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write_secret(&path, "other").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
    }
}
