//! Runs the tools of the system, such as `ip`.

use std::io::Write;
use std::process::{Command, Stdio};

/// Error of a benchmark or of a command that it ran.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs a command line, split at spaces, and returns its standard output.
///
/// # Errors
/// If the command fails: the command, its exit status and its standard error.
pub fn run(line: &str) -> Result<String, Failure> {
    let mut words = line.split_whitespace();
    let name = words.next().ok_or("the command line is empty")?;
    let output = Command::new(name).args(words).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("`{line}` {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// Runs a command line with `input` as its standard input.
///
/// # Errors
/// If the command fails: the command, its exit status and the first line of its standard error.
pub fn feed(line: &str, input: &str) -> Result<(), Failure> {
    let mut words = line.split_whitespace();
    let name = words.next().ok_or("the command line is empty")?;
    let mut child = Command::new(name)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{name}: {error}"))?;
    let mut stdin = child.stdin.take().ok_or("the command has no standard input")?;
    let text = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    let written = writer.join().map_err(|_| "the thread that writes to the command panicked")?;
    // A command that failed may not have read all input: its own error tells more than that of the writer.
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` {}: {}", output.status, said.lines().next().unwrap_or("")).into());
    }
    Ok(written?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_command_that_ends_early_is_its_own() {
        // More than a pipe holds.
        let input = "x".repeat(1 << 20);
        let error = feed("ls /nonexistent", &input).unwrap_err().to_string();
        assert!(error.starts_with("`ls /nonexistent` exit status: 2: ls: "), "{error}");
        assert!(feed("true", &input).is_err(), "it did not read the input");
        feed("wc", &input).unwrap();
    }
}
