//! The errors of a lab. This file changes when a lab can fail in another way.

use std::path::PathBuf;

/// What can go wrong with a lab.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The topology file cannot be read.
    #[error("cannot read {path}")]
    TopologyFile {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        source: std::io::Error,
    },
    /// The topology file has a syntax error or contradicts itself.
    #[error("{file}: {problem}")]
    Topology {
        /// The file, or `default.yaml`.
        file: String,
        /// What is wrong, with the name of the invalid entry.
        problem: String,
    },
    /// A name that cannot be a lab's.
    #[error("`{0}` cannot name a lab: use 1 to 12 lower-case letters and digits, beginning with a letter")]
    BadName(String),
    /// The caller is not root.
    #[error("a lab needs root: it makes network namespaces and loads eBPF programs")]
    NotRoot,
    /// A program that the lab calls is not installed.
    #[error("`{tool}` is not installed; it comes with the package {package}")]
    MissingTool {
        /// Name of the program.
        tool: &'static str,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// Nothing has prepared the kernel that guests boot.
    #[error("{0} has no kernel for guests; `make setup-test` (scripts/guest-kernel.sh) prepares it")]
    NoGuestKernel(PathBuf),
    /// A lab of this name is up already.
    #[error("lab {0} is already up; `sluice lab down --name {0}` ends it")]
    AlreadyUp(String),
    /// Another command uses the lab at the moment.
    #[error("another command is working on lab {0}; try again when it has ended")]
    Busy(String),
    /// A signal ended the command while it brought the lab up.
    #[error("interrupted while lab {0} was being brought up")]
    Interrupted(String),
    /// No lab of this name exists.
    #[error("lab {0} is not up; `sluice lab up --name {0}` brings it up")]
    NotUp(String),
    /// All management networks are taken.
    #[error("no /24 of 198.18.0.0/15 is free for the lab's management network")]
    NoNetwork,
    /// A name that the lab does not have.
    #[error("the lab has no `{name}`; it has {known}")]
    Unknown {
        /// The name that was requested.
        name: String,
        /// All names of that kind, for the message.
        known: String,
    },
    /// A command failed.
    #[error("{what} failed ({status}): {output}")]
    Command {
        /// What the command was for.
        what: String,
        /// Its exit status.
        status: String,
        /// What it wrote to stderr and stdout.
        output: String,
    },
    /// The API refused or cannot be reached.
    #[error(transparent)]
    Api(#[from] sluice_client::Error),
    /// A node's metrics cannot be read.
    #[error("cannot read {url}")]
    Metrics {
        /// Address of the metrics server.
        url: String,
        /// The underlying error.
        source: reqwest::Error,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {seconds} s{hint}")]
    Timeout {
        /// The awaited event.
        what: String,
        /// Length of the wait, in seconds.
        seconds: u64,
        /// What may explain it, such as the end of a log, beginning with "; "; or empty.
        hint: String,
    },
    /// A process of the lab ended by itself.
    #[error("{name} has ended; the end of its log:\n{log}")]
    Died {
        /// Name of the process.
        name: String,
        /// The end of its log.
        log: String,
    },
    /// The operating system refused a call.
    #[error("{what} {path}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The file concerned.
        path: PathBuf,
        /// The underlying error.
        source: std::io::Error,
    },
    /// An answer or a state file that does not have the expected form.
    #[error("{what} does not have the expected form: {problem}")]
    Form {
        /// The text that was read.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// `down` could not remove everything.
    #[error("lab {name} left behind: {left}")]
    LeftBehind {
        /// Name of the lab.
        name: String,
        /// Names of what still exists.
        left: String,
    },
}

impl Error {
    /// True if the caller gave a name or a topology file that cannot be used.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::TopologyFile { .. } | Self::Topology { .. } | Self::BadName(_) | Self::Unknown { .. }
        )
    }
}

/// Result of the lab's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Attaches the file and the attempt to an I/O error.
pub(crate) trait IoContext<T> {
    fn context(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> IoContext<T> for std::io::Result<T> {
    fn context(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::Io { what, path: path.into(), source })
    }
}
