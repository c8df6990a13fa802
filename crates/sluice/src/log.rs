//! Logging to standard error. A separate thread writes the lines, so that a slow or stopped reader of
//! standard error never delays the process: a gateway that waits could send its hellos too late and lose its
//! vIPs.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Most lines that wait to be written. Further lines are discarded and counted.
const WAITING_MAX: usize = 8192;
/// Longest time that the process waits at its end for the remaining lines.
const END_MAX: Duration = Duration::from_secs(1);
/// Time between two attempts to send the end to a full queue.
const END_RETRY: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text for each event
    Text,
    /// One JSON object for each event
    Json,
}

#[derive(Args)]
pub struct LogArgs {
    /// Format of log lines
    #[arg(long, global = true, env = "SLUICE_LOG_FORMAT", default_value = "text", hide_short_help = true)]
    log_format: LogFormat,
    /// Log filter, such as `info` or `sluice_gateway=debug` [default: `info` for roles, `warn` for other
    /// commands]
    #[arg(long, global = true, env = "SLUICE_LOG", value_name = "FILTER", hide_short_help = true)]
    log: Option<String>,
}

impl LogArgs {
    /// Starts logging to standard error, until [`Log::end`]. `default` is the filter if the user gives none.
    pub fn start(&self, default: &str) -> Result<Log, Failure> {
        let wanted = self.log.as_deref().unwrap_or(default);
        let filter: EnvFilter = wanted
            .parse()
            .map_err(|error| Failure::Usage(format!("`{wanted}` is not a log filter: {error}")))?;
        let colors = std::io::stderr().is_terminal();
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let log = Log { lines, discarded: Arc::default() };
        let discarded = log.discarded.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&waiting, &discarded, io::stderr()))
            .map_err(|source| Failure::System {
                what: "cannot start the thread that writes the log".to_owned(),
                source,
            })?;
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log.clone());
        match self.log_format {
            LogFormat::Text => lines.with_ansi(colors).init(),
            LogFormat::Json => lines.json().flatten_event(true).init(),
        }
        Ok(log)
    }
}

enum Item {
    Line(Vec<u8>),
    /// Answered when all lines before it and the number of discarded lines are written.
    End(SyncSender<()>),
}

/// Sends lines to the thread that writes them.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<Item>,
    discarded: Arc<AtomicU64>,
}

impl Log {
    /// Waits until all lines are written, for at most [`END_MAX`].
    pub fn end(self) {
        let deadline = Instant::now() + END_MAX;
        let (done, ended) = sync_channel(1);
        let mut end = Item::End(done);
        while let Err(TrySendError::Full(unsent)) = self.lines.try_send(end) {
            if Instant::now() >= deadline {
                return;
            }
            end = unsent;
            std::thread::sleep(END_RETRY);
        }
        // The process ends in any case.
        let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl Write for Log {
    /// Sends one line; the subscriber calls this once for each line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Item::Line(line.to_vec())).is_err() {
            self.discarded.fetch_add(1, Ordering::Relaxed);
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

/// Writes lines until all senders are gone. A line that cannot be written is lost: there is no other place to
/// report it.
fn write_lines(waiting: &Receiver<Item>, discarded: &AtomicU64, mut out: impl Write) {
    while let Ok(item) = waiting.recv() {
        if let Item::Line(line) = &item {
            drop(out.write_all(line));
        }
        let count = discarded.swap(0, Ordering::Relaxed);
        if count != 0 {
            drop(writeln!(out, "{count} log lines were discarded because standard error is read too slowly"));
        }
        if let Item::End(done) = item {
            // The process may have stopped waiting.
            let _ = done.send(());
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
    fn logging_never_waits_and_discarded_lines_are_counted() {
        let (lines, waiting) = sync_channel(2);
        let mut log = Log { lines, discarded: Arc::default() };
        // No thread writes yet: two lines wait, the other two are discarded.
        for line in [&b"one\n"[..], b"two\n", b"three\n", b"four\n"] {
            log.write_all(line).unwrap();
        }
        let (out, discarded) = (Out::default(), log.discarded.clone());
        let written = out.clone();
        let writer = std::thread::spawn(move || write_lines(&waiting, &discarded, out));
        while !String::from_utf8_lossy(&written.0.lock().unwrap()).contains("two") {
            std::thread::yield_now();
        }
        log.write_all(b"five\n").unwrap();
        log.end();
        writer.join().unwrap();
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines.last()), ("one", Some(&"five")));
        assert!(lines.contains(&"2 log lines were discarded because standard error is read too slowly"));
    }

    #[test]
    fn end_waits_for_a_full_queue() {
        let (lines, waiting) = sync_channel(1);
        let mut log = Log { lines, discarded: Arc::default() };
        log.write_all(b"one\n").unwrap();
        let (out, discarded) = (Out::default(), log.discarded.clone());
        let written = out.clone();
        let writer = std::thread::spawn(move || {
            // Until then the queue is full.
            std::thread::sleep(Duration::from_millis(50));
            write_lines(&waiting, &discarded, out);
        });
        log.end();
        assert_eq!(String::from_utf8_lossy(&written.0.lock().unwrap()), "one\n");
        writer.join().unwrap();
    }

    #[test]
    fn end_is_answered_after_the_number_of_discarded_lines() {
        /// Checks that nothing is written after the answer.
        struct BeforeEnd(Receiver<()>);

        impl Write for BeforeEnd {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                assert!(self.0.try_recv().is_err(), "the end was answered before this was written");
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let (lines, waiting) = sync_channel(1);
        let (done, ended) = sync_channel(1);
        assert!(lines.send(Item::End(done)).is_ok());
        drop(lines);
        write_lines(&waiting, &AtomicU64::new(3), BeforeEnd(ended));
    }
}
