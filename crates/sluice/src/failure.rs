//! Why a command failed, what its exit code is, and how that is printed.

use sluice_client::{CloudFileError, Error as ApiError};
use std::error::Error as StdError;
use std::path::PathBuf;
use std::process::ExitCode;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The API refused the request, could not be reached, or has no such object.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A cloud file cannot be used.
    #[error("{}", path.display())]
    Cloud {
        path: PathBuf,
        #[source]
        source: Box<CloudFileError>,
    },
    /// Arguments that contradict each other, or have a value that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// A file, standard output, a thread or another resource of this machine cannot be used.
    #[error("{what}")]
    System {
        /// The failed operation: `cannot write FILE`.
        what: String,
        #[source]
        source: std::io::Error,
    },
    /// The agent of this node does not answer.
    #[error("cannot reach the agent at {}: is it running on this node, is --socket right, and are you root?", socket.display())]
    Agent {
        socket: PathBuf,
        #[source]
        source: reqwest::Error,
    },
    /// The response of the agent cannot be parsed.
    #[error("{action}: the response is not that of this version's agent; does another program listen there?")]
    AgentMalformed {
        action: String,
        #[source]
        source: serde_json::Error,
    },
    /// The agent of this node refused the request.
    #[error("{action}: {detail}")]
    AgentRefused { action: String, status: u16, detail: String },
    /// A dry run found existing objects with different content.
    #[error("{0} objects exist with different content; `apply` would stop at the first of them")]
    Differing(u64),
    /// Hosts did not answer: the result does not include them. A line for each of them, with the reason.
    #[error("the answer is incomplete; these hosts did not answer:\n  {0}")]
    HostsUnanswered(String),
    /// A placement plan was not done at the end of the wait.
    #[error("plan {plan} is not done after {seconds} s: {done} of {steps} steps are")]
    PlanNotDone { plan: u64, seconds: u64, done: u64, steps: u64 },
    /// A placement plan was stopped during the wait. `note` is the reason, or empty.
    #[error("plan {plan} was stopped after {done} of {steps} steps{}{note}", if note.is_empty() { "" } else { ": " })]
    PlanStopped { plan: u64, done: u64, steps: u64, note: String },
    /// A migration failed during the wait. It has not ended: it can be canceled.
    #[error("the migration of instance `{name}` to host `{to}` fails: {problem}")]
    MigrationFailed { name: String, to: String, problem: String },
    /// A migration was canceled during the wait.
    #[error("the migration of instance `{name}` to host `{to}` was canceled")]
    MigrationCanceled { name: String, to: String },
    /// The arguments of a lab command or its topology file cannot be used.
    #[error(transparent)]
    LabUsage(Box<sluice_lab::Error>),
    /// A role ended with an error.
    #[error("sluice {role} failed")]
    Role {
        role: &'static str,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Failure {
    /// A function for `map_err` that wraps the error of a role.
    pub fn role<E: StdError + Send + Sync + 'static>(role: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Role { role, source: Box::new(source) }
    }

    /// The error of a command of `sluice lab`.
    pub fn lab(error: sluice_lab::Error) -> Self {
        if error.is_usage() { Self::LabUsage(Box::new(error)) } else { Self::role("lab")(error) }
    }

    /// The exit code; see `sluice --help`.
    pub fn code(&self) -> u8 {
        match self {
            Self::Api(
                ApiError::BadUrl(_)
                | ApiError::AmbiguousName { .. }
                | ApiError::NameOrId { .. }
                | ApiError::NotWithin { .. },
            ) => 2,
            Self::Api(ApiError::Unreachable { .. } | ApiError::Malformed { .. }) => 3,
            Self::Agent { .. } | Self::AgentMalformed { .. } => 3,
            Self::Api(error) if error.is_not_found() => 4,
            Self::AgentRefused { status: 404, .. } => 4,
            Self::Api(
                ApiError::NotProgrammed { .. } | ApiError::NotComplete { .. } | ApiError::NotRemoved { .. },
            ) => 5,
            Self::PlanNotDone { .. } | Self::HostsUnanswered(_) => 5,
            Self::Api(_) | Self::AgentRefused { .. } | Self::Differing(_) | Self::PlanStopped { .. } => 1,
            Self::MigrationFailed { .. } | Self::MigrationCanceled { .. } => 1,
            Self::Cloud { .. } | Self::Usage(_) | Self::LabUsage(_) | Self::System { .. } => 2,
            Self::Role { .. } => 6,
        }
    }

    /// Prints the error and its causes, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error: {}", chain(self));
        ExitCode::from(self.code())
    }
}

/// The error and its causes in one text. A cause that the text already contains is left out, and of the
/// nested errors of the HTTP client only the innermost is shown.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    let mut in_http_client = false;
    while let Some(error) = cause {
        in_http_client |= error.is::<reqwest::Error>();
        if in_http_client && error.source().is_some() {
            cause = error.source();
            continue;
        }
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str("\n  cause: ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_shown_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = Failure::System { what: "cannot write".to_owned(), source: refused };
        assert_eq!(chain(&failure), "cannot write\n  cause: connection refused");
        let repeated = Failure::System {
            what: "cannot write: disk is full".to_owned(),
            source: std::io::Error::other("disk is full"),
        };
        assert_eq!(chain(&repeated), "cannot write: disk is full");
    }

    #[test]
    fn exit_code_distinguishes_not_found_from_refused() {
        let problem = |status| {
            let problem =
                serde_json::from_value(serde_json::json!({"status": status, "title": "x"})).unwrap();
            Failure::Api(ApiError::Refused { action: "show".to_owned(), problem: Box::new(problem) }).code()
        };
        assert_eq!((problem(404), problem(409), problem(503)), (4, 1, 1));
    }

    #[test]
    fn exit_code_distinguishes_wrong_usage_of_the_lab_from_its_failure() {
        let unknown = sluice_lab::Error::Unknown { name: "nope".to_owned(), known: "gw-a".to_owned() };
        let failure = Failure::lab(unknown);
        assert_eq!((failure.code(), chain(&failure).as_str()), (2, "the lab has no `nope`; it has gw-a"));
        assert_eq!(Failure::lab(sluice_lab::Error::BadName("a b".to_owned())).code(), 2);
        assert_eq!(Failure::lab(sluice_lab::Error::NoNetwork).code(), 6);
    }
}
