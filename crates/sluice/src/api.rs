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
    #[arg(
        long = "api",
        global = true,
        env = "SLUICE_API",
        hide_env_values = true,
        value_name = "URL",
        default_value = DEFAULT_API
    )]
    url: String,
    /// File with the API's bearer token; SLUICE_TOKEN can hold the token itself
    #[arg(long, global = true, env = "SLUICE_TOKEN_FILE", value_name = "FILE", hide_short_help = true)]
    token_file: Option<PathBuf>,
    /// Output format
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
}

/// Environment variable that can hold the token itself.
const TOKEN_VARIABLE: &str = "SLUICE_TOKEN";

impl ApiArgs {
    pub fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(&self.url, self.token()?)?)
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        if let Some(path) = &self.token_file {
            let what = || format!("cannot read the token in {}", path.display());
            let text =
                std::fs::read_to_string(path).map_err(|source| Failure::System { what: what(), source })?;
            return parse_token(&format!("file {}", path.display()), &text).map(Some);
        }
        match std::env::var_os(TOKEN_VARIABLE) {
            // An empty variable is treated like one that is not set.
            Some(text) if !text.is_empty() => parse_token(TOKEN_VARIABLE, &text.to_string_lossy()).map(Some),
            _ => Ok(None),
        }
    }
}

/// The token in the text of a file or variable. `source` is for the error.
fn parse_token(source: &str, text: &str) -> Result<String, Failure> {
    // A line break at the end is not part of the token.
    let token = text.trim();
    if token.is_empty() {
        return Err(Failure::Usage(format!("{source} is empty: it must contain the API's token")));
    }
    if token.chars().any(char::is_control) {
        return Err(Failure::Usage(format!(
            "{source} does not contain a token: a token is one line without control characters"
        )));
    }
    Ok(token.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_one_line() {
        assert_eq!(parse_token("SLUICE_TOKEN", "abc\n").unwrap(), "abc");
        let error = |text: &str| {
            let error = parse_token("file api.token", text).unwrap_err();
            assert_eq!(error.code(), 2);
            error.to_string()
        };
        assert!(error(" \n").starts_with("file api.token is empty"));
        for text in ["abc\ndef\n", "abc\u{7f}"] {
            assert!(error(text).starts_with("file api.token does not contain a token"), "{text:?}");
        }
    }
}
