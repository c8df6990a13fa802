//! The flags with which every noun reaches the API, and how names of VPCs are resolved.

use crate::failure::Failure;
use crate::output::Format;
use clap::{Args, Subcommand};
use sluice_client::{Client, DEFAULT_API, Tenant, Vpc};
use std::path::PathBuf;

#[derive(Args)]
#[command(next_help_heading = "API")]
pub struct ApiArgs {
    /// Base URL of the API
    #[arg(long = "api", global = true, env = "SLUICE_API", value_name = "URL", default_value = DEFAULT_API)]
    url: String,
    /// File with the API's bearer token; SLUICE_TOKEN can hold the token itself
    #[arg(long, global = true, env = "SLUICE_TOKEN_FILE", value_name = "FILE", hide_short_help = true)]
    token_file: Option<PathBuf>,
    /// Output format
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

impl ApiArgs {
    pub fn client(&self) -> Result<Client, Failure> {
        let token = match &self.token_file {
            Some(path) => {
                let what = || format!("cannot read the token in {}", path.display());
                let text = std::fs::read_to_string(path)
                    .map_err(|source| Failure::System { what: what(), source })?;
                Some(text.trim().to_owned())
            }
            None => std::env::var("SLUICE_TOKEN").ok(),
        };
        Ok(Client::new(&self.url, token)?)
    }
}

/// A verb with the flags of the API.
#[derive(Args)]
pub struct WithApi<V: Subcommand> {
    #[command(flatten)]
    pub api: ApiArgs,
    #[command(subcommand)]
    pub verb: V,
}

/// The VPC that `VPC` or `TENANT/VPC` refers to; each part is a name or an id.
pub async fn vpc(client: &Client, text: &str) -> Result<Vpc, Failure> {
    let Some((tenant, vpc)) = text.split_once('/') else { return Ok(client.find(text, &[]).await?) };
    let tenant = client.id_of::<Tenant>(tenant, &[]).await?;
    Ok(client.find(vpc, &[("tenant", &tenant.to_string())]).await?)
}
