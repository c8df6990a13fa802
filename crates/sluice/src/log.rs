//! Logs of the roles: structured, on standard error.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// What a log line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text an event
    Text,
    /// One JSON object an event
    Json,
}

/// How to log.
#[derive(Args)]
pub struct LogArgs {
    /// Form of log lines
    #[arg(long, global = true, env = "SLUICE_LOG_FORMAT", default_value = "text", hide_short_help = true)]
    log_format: LogFormat,
    /// What to log: `info`, `sluice_gateway=debug` [default: info of roles, warnings of other commands]
    #[arg(long, global = true, env = "SLUICE_LOG", value_name = "FILTER", hide_short_help = true)]
    log: Option<String>,
}

impl LogArgs {
    /// Starts logging to standard error; `default` is the filter where none is given.
    pub fn start(&self, default: &str) -> Result<(), Failure> {
        let wanted = self.log.as_deref().unwrap_or(default);
        let filter: EnvFilter = wanted
            .parse()
            .map_err(|error| Failure::Usage(format!("`{wanted}` is no log filter: {error}")))?;
        let colours = std::io::stderr().is_terminal();
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => lines.with_ansi(colours).init(),
            LogFormat::Json => lines.json().flatten_event(true).init(),
        }
        Ok(())
    }
}
