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
}

impl Failures {
    /// Adds `count` failures that `text` describes.
    pub(crate) fn add(&mut self, count: u64, text: impl FnOnce() -> String) {
        self.entries += count;
        if self.named.len() < NAMED_FAILURES_MAX {
            let text = text();
            tracing::error!(failure = text, "update");
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
        let Self { mut named, unnamed, entries } = self;
        if unnamed > 0 {
            named.push(format!("and {unnamed} more"));
        }
        (named, entries)
    }
}
