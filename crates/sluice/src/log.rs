//! Logs of the roles: structured, on standard error. A thread of its own writes them: where they
//! are read slowly, or not at all, nothing waits for that, least of all a gateway's part in its cluster.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written; what is more is lost, and counted.
const WAITING_MAX: usize = 8192;
/// At the end, what waits is written for so long at most.
const END_MAX: Duration = Duration::from_secs(1);

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
    /// Starts logging to standard error, to be ended by [`Log::end`]; `default` is the filter where none
    /// is given.
    pub fn start(&self, default: &str) -> Result<Log, Failure> {
        let wanted = self.log.as_deref().unwrap_or(default);
        let filter: EnvFilter = wanted
            .parse()
            .map_err(|error| Failure::Usage(format!("`{wanted}` is no log filter: {error}")))?;
        let colours = std::io::stderr().is_terminal();
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let log = Log { lines, lost: Arc::default() };
        let lost = log.lost.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&waiting, &lost, io::stderr()))
            .map_err(|source| Failure::File { what: "cannot start threads".to_owned(), source })?;
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log.clone());
        match self.log_format {
            LogFormat::Text => lines.with_ansi(colours).init(),
            LogFormat::Json => lines.json().flatten_event(true).init(),
        }
        Ok(log)
    }
}

enum Item {
    Line(Vec<u8>),
    /// Everything before it is written.
    End(SyncSender<()>),
}

/// Where lines go to be written.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

impl Log {
    /// Waits until what was logged is written, a second at most.
    pub fn end(self) {
        let (done, ended) = sync_channel(1);
        if self.lines.try_send(Item::End(done)).is_ok() {
            // Whether it was in time or not, this is the end.
            let _ = ended.recv_timeout(END_MAX);
        }
    }
}

impl Write for Log {
    /// Each call is one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Item::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Writes lines until nobody sends any more. One that cannot be written is lost: there is no other place to say so.
fn write_lines(waiting: &Receiver<Item>, lost: &AtomicU64, mut out: impl Write) {
    while let Ok(item) = waiting.recv() {
        match item {
            Item::Line(line) => drop(out.write_all(&line)),
            Item::End(done) => drop(done.send(())),
        }
        let number = lost.swap(0, Ordering::Relaxed);
        if number != 0 {
            drop(writeln!(out, "{number} lines of the log were lost: they are read too slowly"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    #[derive(Clone, Default)]
    struct Out(Arc<Mutex<Vec<u8>>>);

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_who_reads() {
        let (lines, waiting) = sync_channel(2);
        let mut log = Log { lines, lost: Arc::default() };
        // Nobody reads at all: two lines wait, the others are counted.
        for line in [&b"one\n"[..], b"two\n", b"three\n", b"four\n"] {
            log.write_all(line).unwrap();
        }
        let (out, lost) = (Out::default(), log.lost.clone());
        let written = out.clone();
        let writer = std::thread::spawn(move || write_lines(&waiting, &lost, out));
        while !String::from_utf8_lossy(&written.0.lock().unwrap()).contains("two") {
            std::thread::yield_now();
        }
        log.write_all(b"five\n").unwrap();
        log.end();
        writer.join().unwrap();
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines.last()), ("one", Some(&"five")));
        assert!(lines.contains(&"2 lines of the log were lost: they are read too slowly"));
    }
}
