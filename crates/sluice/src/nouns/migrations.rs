//! `sluice instances migrate` and `cancel-migration`.

use super::resource::Target;
use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use sluice_client::{Client, Host, Instance, Migration, MigrationEnd, SessionMode};
use std::time::Duration;

#[derive(Args)]
pub struct Migrate {
    #[command(flatten)]
    target: Target<Instance>,
    /// Host to migrate to: name or id
    #[arg(long, value_name = "HOST")]
    to: String,
    /// What happens to the sessions of the instance: `copy`: they continue; `reset`: its TCP connections end at both
    /// ends, so that they begin again by the rules of the other host; `none`: packets are redirected, and nothing else is done
    #[arg(long, value_name = "MODE", default_value_t = SessionMode::Copy)]
    sessions: SessionMode,
    /// Wait until the instance runs on the other host, for at most SECONDS [300 if left out], and print each change of the
    /// phase
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "300")]
    wait: Option<u64>,
}

#[derive(Args)]
pub struct CancelMigration {
    #[command(flatten)]
    target: Target<Instance>,
}

/// One line about a migration.
fn line(migration: &Migration) -> String {
    let Migration { phase, copied_sessions, problem, .. } = migration;
    let sessions = if *copied_sessions > 0 { format!(", {copied_sessions} sessions") } else { String::new() };
    let problem = if problem.is_empty() { String::new() } else { format!(": {problem}") };
    format!("{phase}{sessions}{problem}")
}

impl Migrate {
    /// Starts the migration. With `--wait`, prints the instance at its end, otherwise the migration.
    pub async fn run(self, api: &ApiArgs, client: &Client) -> Result<(), Failure> {
        let Self { target, to, sessions, wait } = self;
        let host = client.find::<Host>(&to, &[]).await?;
        let instance = target.find(client).await?;
        let ids = (instance.vpc, instance.id);
        let migration = client.start_migration(ids, host.id, sessions, target.expected()).await?;
        let Some(seconds) = wait else { return output::one(api.output, &migration) };
        let print = |now: &Migration| eprintln!("migration to host `{}`: {}", host.name, line(now));
        let end = client.wait_migrated(ids.0, &migration, Duration::from_secs(seconds), print).await?;
        let (name, to) = (instance.name, host.name.clone());
        match end {
            MigrationEnd::Migrated(instance) => output::one(api.output, &*instance),
            MigrationEnd::Failed(problem) => Err(Failure::MigrationFailed { name, to, problem }),
            MigrationEnd::Canceled(_) => Err(Failure::MigrationCanceled { name, to }),
        }
    }
}

impl CancelMigration {
    /// Cancels the migration.
    pub async fn run(self, client: &Client) -> Result<(), Failure> {
        let instance = self.target.find(client).await?;
        client.cancel_migration(instance.vpc, instance.id, self.target.expected()).await?;
        eprintln!("canceled the migration of instance `{}` ({})", instance.name, instance.id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_client::MigrationStatus;
    use sluice_types::{HostId, InstanceId};

    #[test]
    fn line_has_sessions_and_problem_if_there_are_any() {
        let migration = Migration {
            id: 7,
            instance: InstanceId::new(1),
            from: HostId::new(2),
            host: HostId::new(3),
            sessions: SessionMode::Copy,
            phase: MigrationStatus::Waiting,
            copied_sessions: 0,
            problem: String::new(),
            started_ms: 1,
            ready_ms: None,
        };
        assert_eq!(line(&migration), "waiting");
        let ready = Migration { phase: MigrationStatus::Ready, copied_sessions: 12, ..migration.clone() };
        assert_eq!(line(&ready), "ready, 12 sessions");
        let failed = Migration { phase: MigrationStatus::Failed, problem: "no room".to_owned(), ..migration };
        assert_eq!(line(&failed), "failed: no room");
    }
}
