//! `sluice health`: the anomalies that health checks have found. This file changes with `/v1/health` of the API.

use crate::api::ApiArgs;
use crate::failure::Failure;
use crate::output::{self, Format};

/// `sluice health`.
#[derive(clap::Args)]
pub struct Health {
    #[command(flatten)]
    api: ApiArgs,
    /// Only the node with this id or name
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl Health {
    pub async fn run(self) -> Result<(), Failure> {
        let health = self.api.client()?.health(self.node.as_deref()).await?;
        if self.api.output != Format::Table {
            return output::one(self.api.output, &health);
        }
        let columns = ["name", "class", "subject", "since_ms", "evidence", "cause"];
        output::list(self.api.output, &columns, &health.items)?;
        let more = if health.others { ", and others that are not listed" } else { "" };
        let (found, reporting) = (health.items.len(), health.reporting);
        output::print(&format!("\n{found} anomalies{more}; {reporting} nodes report\n"))
    }
}
