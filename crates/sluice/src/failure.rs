//! Why a command failed, what its exit code is, and how that is printed.

use sluice_client::{CloudFileError, Error as ApiError};
use std::error::Error as StdError;
use std::path::PathBuf;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The API refused, could not be reached, or knows no such thing.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A description of a cloud cannot be used.
    #[error("{}", path.display())]
    Cloud {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<CloudFileError>,
    },
    /// Flags that do not fit each other.
    #[error("{0}")]
    Usage(String),
    /// A file or the terminal.
    #[error("{what}")]
    File {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The node's agent does not answer.
    #[error("cannot reach the agent at {}: does it run here, with this --socket, and are you root?", socket.display())]
    Agent {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The node's agent refused.
    #[error("{action}: {detail}")]
    AgentRefused {
        /// What was asked.
        action: String,
        /// HTTP status.
        status: u16,
        /// What it said.
        detail: String,
    },
    /// A dry run found objects that applying would fail on.
    #[error("objects that are there with other content: {0}; applying would stop at the first of them")]
    Differing(u64),
    /// A role ended.
    #[error("sluice {role} failed")]
    Role {
        /// Which.
        role: &'static str,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Failure {
    /// For `map_err` of a role's end.
    pub fn role<E: StdError + Send + Sync + 'static>(role: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Role { role, source: Box::new(source) }
    }

    /// The exit code; see `sluice --help`.
    pub fn code(&self) -> u8 {
        match self {
            Self::Api(ApiError::BadUrl(_) | ApiError::AmbiguousName { .. } | ApiError::NameOrId { .. }) => 2,
            Self::Api(ApiError::Unreachable { .. } | ApiError::Malformed { .. }) | Self::Agent { .. } => 3,
            Self::Api(error) if error.is_not_found() => 4,
            Self::AgentRefused { status: 404, .. } => 4,
            Self::Api(ApiError::NotProgrammed { .. }) => 5,
            Self::Api(_) | Self::AgentRefused { .. } | Self::Differing(_) => 1,
            Self::Cloud { .. } | Self::Usage(_) | Self::File { .. } => 2,
            Self::Role { .. } => 6,
        }
    }

    /// Prints the chain of causes, each once, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error: {}", chain(self));
        ExitCode::from(self.code())
    }
}

/// The error and its causes in one text; a cause that the text above it already quotes is left out,
/// and of an HTTP client's many layers all but the last.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    let mut layers = false;
    while let Some(error) = cause {
        layers |= error.is::<reqwest::Error>();
        if layers && error.source().is_some() {
            cause = error.source();
            continue;
        }
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str("\n  cause: ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_says_each_cause_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = Failure::File { what: "cannot write".to_owned(), source: refused };
        assert_eq!(chain(&failure), "cannot write\n  cause: connection refused");
        let quoted = Failure::File {
            what: "cannot write: disk is full".to_owned(),
            source: std::io::Error::other("disk is full"),
        };
        assert_eq!(chain(&quoted), "cannot write: disk is full");
    }

    #[test]
    fn codes_tell_refusal_from_absence() {
        let problem = |status| {
            let problem =
                serde_json::from_value(serde_json::json!({"status": status, "title": "x"})).unwrap();
            Failure::Api(ApiError::Refused { action: "show".to_owned(), problem: Box::new(problem) }).code()
        };
        assert_eq!((problem(404), problem(409), problem(503)), (4, 1, 1));
    }
}
