//! Writes to the standard output.

use crate::error::{Error, IoContext, Result};
use std::io::{ErrorKind, Write};

/// Prints a text. Unlike `print!` it does not panic if the reader is gone, which would leave the lab up.
pub(crate) fn print_text(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to", "standard output")
}

/// Prints a text; a reader that is gone (`| head`) is no error.
pub(crate) fn print_unless_closed(text: &str) -> Result<()> {
    match print_text(text) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}
