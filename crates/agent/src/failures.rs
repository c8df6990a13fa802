//! Entries of an update step that could not be written: the first ones by name, the others by number.

use std::fmt::Display;

use crate::error_chain;

/// Failures of a step that are reported by name; further ones are only counted.
pub(crate) const NAMED_FAILURES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Failures {
    named: Vec<String>,
    /// Number of failures that no element of `named` describes.
    unnamed: u64,
    /// Number of entries that failed in all.
    entries: u64,
    /// Number of those that may succeed when they are tried again as they are.
    retriable: u64,
    /// Number of those that only a snapshot brings again.
    lost: u64,
    /// Number of those that are written and lack only their meter, and of meters without room.
    unmetered: u64,
    /// Whether failures are not logged as errors, because they are of a repeated attempt.
    repeated: bool,
    /// The last failure.
    last: String,
}

impl Failures {
    /// For a repeated attempt, whose failures were logged before.
    pub(crate) fn of_repetition() -> Self {
        Self { repeated: true, ..Self::default() }
    }

    /// Adds `count` failures that `text` describes, of entries that may be tried again.
    pub(crate) fn add(&mut self, count: u64, text: impl FnOnce() -> String) {
        self.retriable += count;
        self.record(count, text);
    }

    /// Adds the failure of an entry that cannot be tried again: only a snapshot brings it again.
    pub(crate) fn add_lost(&mut self, text: impl FnOnce() -> String) {
        self.lost += 1;
        self.record(1, text);
    }

    /// Adds the failure of an entry that is written when another one comes.
    pub(crate) fn add_waiting(&mut self, text: impl FnOnce() -> String) {
        self.record(1, text);
    }

    /// Adds the failure of an entry that is written and lacks only its meter, or of a meter for which there is no room. It is
    /// tried again, and the tables are complete without it.
    pub(crate) fn add_unmetered(&mut self, text: impl FnOnce() -> String) {
        self.unmetered += 1;
        self.record(1, text);
    }

    /// Number of failures of [`Failures::add_unmetered`].
    pub(crate) fn unmetered(&self) -> u64 {
        self.unmetered
    }

    /// Number of failures of entries that may be tried again.
    pub(crate) fn retriable(&self) -> u64 {
        self.retriable
    }

    /// Number of failures of entries that only a snapshot brings again.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The reason of the last failure, without the name of the entry.
    pub(crate) fn last_reason(&self) -> String {
        self.last.split_once(": ").map_or(&*self.last, |(_, reason)| reason).to_owned()
    }

    fn record(&mut self, count: u64, text: impl FnOnce() -> String) {
        self.entries += count;
        let text = text();
        self.last.clone_from(&text);
        if self.named.len() < NAMED_FAILURES_MAX {
            match self.repeated {
                false => tracing::error!(failure = text, "update"),
                true => tracing::debug!(failure = text, "update, tried again"),
            }
            self.named.push(text);
        } else {
            self.unnamed += count;
        }
    }

    /// The value of `result`; an error is added as a failure of `entry`.
    pub(crate) fn check<T, E: std::error::Error>(
        &mut self,
        result: Result<T, E>,
        entry: impl Display,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(1, || format!("{entry}: {}", error_chain(&error)));
                None
            }
        }
    }

    /// The report for the acknowledgment, whose last line counts the failures without a name; and the number of
    /// entries that failed.
    pub(crate) fn into_report(self) -> (Vec<String>, u64) {
        let Self { mut named, unnamed, entries, .. } = self;
        if unnamed > 0 {
            named.push(format!("and {unnamed} more"));
        }
        (named, entries)
    }
}
