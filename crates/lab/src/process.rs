//! The lab's processes. Long-running ones are started detached and recorded by process id and start time, so
//! that no other process is signaled. The end of a lab also finds processes without a record: by a mark in
//! their environment, or by their namespace.

use crate::error::{Error, IoContext, Result};
use crate::exec::{MARK, argv_at, tail};
use crate::paths::Paths;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is needed to start a process again, and to end this process and no other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    /// `controller` or the node's name.
    pub name: String,
    /// Its namespace's place; `None`: the root namespace.
    pub place: Option<String>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot, which distinguishes it from a later process with
    /// the same id.
    pub start_ticks: u64,
}

/// State of a process in /proc/PID/stat.
struct Stat {
    /// True if it has ended and its parent has not waited for it yet.
    ended: bool,
    start_ticks: u64,
}

/// Reads /proc/PID/stat.
fn stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses may contain anything, so fields count from the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    // The first thread may end long before the others, which hold files and locks until they end.
    Some(Stat { ended: state == "Z" && threads <= 1, start_ticks: fields.nth(1)?.parse().ok()? })
}

fn alive(pid: i32, start_ticks: u64) -> bool {
    stat(pid).is_some_and(|stat| !stat.ended && stat.start_ticks == start_ticks)
}

impl Process {
    /// Starts a process, its output appended to its log, and records it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start(paths: &Paths, name: &str, place: Option<&str>, argv: Vec<String>) -> Result<Self> {
        Self::start_with_log(paths, (name, name), place, argv)
    }

    /// Like `start`, with the output appended to the log of another name.
    pub(crate) fn start_with_log(
        paths: &Paths,
        (name, log): (&str, &str),
        place: Option<&str>,
        argv: Vec<String>,
    ) -> Result<Self> {
        let log_path = paths.log(log);
        let log =
            File::options().create(true).append(true).open(&log_path).context("cannot open", &log_path)?;
        let words = argv_at(paths, place, &argv);
        let stderr = log.try_clone().context("cannot duplicate", &log_path)?;
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env(MARK, paths.name())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .context("cannot start", &words[0])?;
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        let start_ticks = stat(pid).map_or(0, |stat| stat.start_ticks);
        // Without a wait the ended process would stay a zombie as long as this process lives.
        std::thread::spawn(move || child.wait());
        let process = Self { name: name.to_owned(), place: place.map(str::to_owned), argv, pid, start_ticks };
        process.record(paths)?;
        Ok(process)
    }

    fn record(&self, paths: &Paths) -> Result<()> {
        write_json(&paths.processes().join(format!("{}.json", self.name)), self)
    }

    /// Gives a process that runs another name, in place of a process that has ended. `argv` starts it again.
    pub(crate) fn rename(self, paths: &Paths, name: &str, argv: Vec<String>) -> Result<Self> {
        let own = paths.processes().join(format!("{}.json", self.name));
        let renamed = Self { name: name.to_owned(), argv, ..self };
        renamed.record(paths)?;
        fs::remove_file(&own).context("cannot remove", own)?;
        Ok(renamed)
    }

    /// The records of all processes, ordered by name.
    pub fn all(paths: &Paths) -> Vec<Self> {
        let entries = fs::read_dir(paths.processes()).into_iter().flatten().flatten();
        let records = entries.map(|entry| entry.path());
        // A record that is being written has another ending.
        let records = records.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
        let mut all: Vec<Self> = records.filter_map(|path| read_json(&path).ok()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        alive(self.pid, self.start_ticks)
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Waits until the process has ended; false if it does not end in time.
    pub async fn ended(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        while self.is_alive() {
            if Instant::now() > until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }

    /// Fails with the end of the log if the process has ended.
    pub(crate) fn check(&self, paths: &Paths) -> Result<()> {
        if self.is_alive() {
            return Ok(());
        }
        Err(Error::Died { name: self.name.clone(), log: tail(paths, &self.name) })
    }
}

/// Every process of the lab, recorded or not: marked by its environment, or
/// running in one of the lab's namespaces. The caller is left out.
pub(crate) fn find(paths: &Paths) -> Vec<(i32, u64)> {
    let mark = format!("{MARK}={}", paths.name());
    let namespaces: HashSet<u64> = crate::net::namespaces(paths)
        .iter()
        .filter_map(|name| fs::metadata(Path::new("/run/netns").join(name)).ok())
        .map(|file| file.ino())
        .collect();
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let belongs = |pid: i32| {
        let proc = Path::new("/proc").join(pid.to_string());
        let environment = fs::read(proc.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            || fs::metadata(proc.join("ns/net")).is_ok_and(|file| namespaces.contains(&file.ino()))
    };
    pids.filter(|pid| u32::try_from(*pid) != Ok(own) && belongs(*pid))
        .filter_map(|pid| stat(pid).filter(|stat| !stat.ended).map(|stat| (pid, stat.start_ticks)))
        .collect()
}

/// Ends all processes of the lab; returns those that did not end within 5 seconds.
pub(crate) async fn end_all(paths: &Paths) -> Vec<i32> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        // Repeated, since a process may have started another one just before it ended.
        let found = find(paths);
        if found.is_empty() || Instant::now() > until {
            return found.into_iter().map(|(pid, _)| pid).collect();
        }
        for (pid, start) in found {
            if alive(pid, start) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Replaces a file in one step.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|error| Error::Form { what: path.display().to_string(), problem: error.to_string() })?;
    let new = path.with_extension("new");
    fs::write(&new, text).context("cannot write", &new)?;
    fs::rename(&new, path).context("cannot replace", path)
}

/// Reads a file that [`write_json`] wrote.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read(path).context("cannot read", path)?;
    serde_json::from_slice(&text)
        .map_err(|error| Error::Form { what: path.display().to_string(), problem: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_time() {
        let own = i32::try_from(std::process::id()).unwrap();
        let start = stat(own).unwrap().start_ticks;
        assert!(alive(own, start));
        assert!(!alive(own, start + 1));
        assert!(!alive(i32::MAX, start));
    }

    #[test]
    fn a_process_has_ended_when_its_last_thread_has() {
        let line = |state: &str, threads: u32| {
            format!("9 (a) b) {state} 1 9 9 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 777 0 0")
        };
        let ended = |state, threads| parse_stat(&line(state, threads)).map(|it| (it.ended, it.start_ticks));
        assert_eq!(ended("S", 3), Some((false, 777)));
        assert_eq!(ended("Z", 3), Some((false, 777)));
        assert_eq!(ended("Z", 1), Some((true, 777)));
        assert!(parse_stat("9 (a").is_none());
    }
}
