//! PostgreSQL fails over and loses commits while the controller runs: the server is replaced by one with older data
//! at the same address. What `history` checks holds here, too.

use crate::Ground;
use crate::database_killed::Database;
use crate::history::{Backup, goes_back};
use crate::support::{Failure, Outcome, ensure};
use sluice_lab::{Lab, Options};
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

const BACK: Duration = Duration::from_secs(75);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut database = Database::make(&ground.name).await?;
    let outcome = with(ground, &mut database).await;
    database.remove().await?;
    outcome
}

async fn with(ground: &Ground, database: &mut Database) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    options.database = Some(database.url());
    let lab = Lab::up(options).await?;
    goes_back(&lab, database).await
}

async fn copy(from: &Path, to: &Path) -> Outcome {
    if to.exists() {
        std::fs::remove_dir_all(to)?;
    }
    let copied = Command::new("cp").arg("-a").args([from, to]).status().await?;
    ensure!(copied.success(), "cannot copy {}", from.display());
    Ok(())
}

impl Backup for Database {
    async fn back_up(&mut self, lab: &Lab) -> Outcome {
        self.kill().await?;
        copy(&self.data(), &self.data().with_extension("standby")).await?;
        self.start().await?;
        lab.api().wait_ready(BACK).await.map_err(Failure::from)
    }

    async fn restore(&mut self, lab: &Lab) -> Outcome {
        self.kill().await?;
        copy(&self.data().with_extension("standby"), &self.data()).await?;
        self.start().await?;
        lab.api().wait_ready(BACK).await.map_err(Failure::from)
    }
}
