//! Where the API is and who asks.

use crate::failure::Failure;
use crate::output::Format;
use clap::{Args, Subcommand};
use sluice_client::{Client, DEFAULT_API, Resource, Tenant, Vpc};
use sluice_types::{TenantId, VpcId};
use std::path::PathBuf;

/// How to reach the API and how to print what it says.
#[derive(Args)]
#[command(next_help_heading = "API")]
pub struct ApiArgs {
    /// Base URL of the API
    #[arg(long = "api", global = true, env = "SLUICE_API", value_name = "URL", default_value = DEFAULT_API)]
    url: String,
    /// File with the API's bearer token; SLUICE_TOKEN holds the token itself
    #[arg(long, global = true, env = "SLUICE_TOKEN_FILE", value_name = "FILE", hide_short_help = true)]
    token_file: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

impl ApiArgs {
    /// A client of the API.
    pub fn client(&self) -> Result<Client, Failure> {
        let token = match &self.token_file {
            Some(path) => {
                let what = || format!("cannot read the token in {}", path.display());
                let text =
                    std::fs::read_to_string(path).map_err(|source| Failure::File { what: what(), source })?;
                Some(text.trim().to_owned())
            }
            None => std::env::var("SLUICE_TOKEN").ok(),
        };
        Ok(Client::new(&self.url, token)?)
    }
}

/// A command of the API: its verb, and where the API is.
#[derive(Args)]
pub struct OfApi<V: Subcommand> {
    #[command(flatten)]
    pub api: ApiArgs,
    #[command(subcommand)]
    pub verb: V,
}

/// The VPC that `VPC` or `TENANT/VPC` means, names or ids.
pub async fn vpc(client: &Client, text: &str) -> Result<Vpc, Failure> {
    let Some((tenant, vpc)) = text.split_once('/') else { return Ok(client.find(text, &[]).await?) };
    let tenant: TenantId = client.id_of::<Tenant>(tenant, &[]).await?;
    Ok(client.find(vpc, &[("tenant", &tenant.to_string())]).await?)
}

/// As [`vpc`], the id alone.
pub async fn vpc_id(client: &Client, text: &str) -> Result<VpcId, Failure> {
    Ok(vpc(client, text).await?.id())
}
