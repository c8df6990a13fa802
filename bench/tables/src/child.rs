//! The measured programs of user space. They read commands as lines and answer with lines of JSON
//! (`peers/session.h`).

use crate::data::{Family, Key, Routes, tables_of_8_bits};
use crate::endpoints::{EndpointAnswers, Endpoints};
use crate::rig::Timing;
use serde_json::Value;
use sluice_bench_report::shell::Failure;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The core on which all programs of user space are measured.
const CORE: &str = "0";

/// A running program. It ends when the value is dropped.
pub struct PeerProgram {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for PeerProgram {
    fn drop(&mut self) {
        // The program ends at the end of its input.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

impl PeerProgram {
    fn start(program: &str, arguments: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{program}: {error}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        Ok(Self { child, input, output })
    }

    /// Starts the reader of Sluice's tables, over a copy of a map, in small or huge pages.
    ///
    /// # Errors
    /// If it does not start.
    pub fn reader(map_id: u32, huge: bool) -> Result<Self, Failure> {
        let pages = if huge { "huge" } else { "small" };
        Self::start(env!("TABLES_READER"), &[&map_id.to_string(), CORE, pages])
    }

    /// Starts the program with DPDK's structures, with this much memory; `None` if it was not built.
    ///
    /// # Errors
    /// If it does not start.
    pub fn dpdk(megabytes: u32) -> Result<Option<Self>, Failure> {
        let Some(program) = option_env!("DPDK_PEERS") else { return Ok(None) };
        Self::start(program, &[CORE, &megabytes.to_string()]).map(Some)
    }

    fn send(&mut self, line: &str) -> Result<Value, Failure> {
        let input = self.input.as_mut().ok_or("no standard input")?;
        writeln!(input, "{line}")?;
        input.flush()?;
        let mut answer = String::new();
        // Libraries print messages as well.
        while !answer.starts_with('{') {
            answer.clear();
            if self.output.read_line(&mut answer)? == 0 {
                return Err(format!("`{line}`: the program ended").into());
            }
        }
        let value: Value = serde_json::from_str(&answer)?;
        match value["error"].as_str() {
            Some(error) => Err(format!("`{line}`: {error}").into()),
            None => Ok(value),
        }
    }

    /// Sets the keys of all later timings.
    ///
    /// # Errors
    /// Errors of the program.
    pub fn keys(&mut self, file: &Path, vni: u32) -> Result<(), Failure> {
        self.send(&format!("keys {} {vni}", file.display())).map(drop)
    }

    /// Times the lookups of all keys, `independent` or `dependent`.
    ///
    /// # Errors
    /// Errors of the program.
    pub fn time(&mut self, structure: &str, dependence: &str, vni: u32) -> Result<Timing, Failure> {
        let answer = self.send(&format!("time {structure} {dependence} {vni}"))?;
        let missing = || format!("the answer has no timing of {structure}: {answer}");
        Ok(Timing {
            ns: answer["ns"].as_f64().ok_or_else(missing)?,
            sum: answer["sum"].as_u64().ok_or_else(missing)?,
            found: answer["found"].as_u64().ok_or_else(missing)?,
        })
    }

    /// Fills one of DPDK's structures. Returns the bytes that DPDK allocated for it. `tables` is the number
    /// of second-level tables of 256 entries that the routes need.
    ///
    /// # Errors
    /// Errors of the program; entries that did not fit.
    pub fn load(&mut self, structure: &str, file: &Path, tables: usize) -> Result<f64, Failure> {
        let answer = self.send(&format!("load {structure} {} {tables}", file.display()))?;
        match (answer["failed"].as_u64(), answer["bytes"].as_f64()) {
            (Some(0), Some(bytes)) => Ok(bytes),
            _ => Err(format!("{structure} did not accept all entries: {answer}").into()),
        }
    }

    /// Frees one of DPDK's structures.
    ///
    /// # Errors
    /// Errors of the program.
    pub fn free(&mut self, structure: &str) -> Result<(), Failure> {
        self.send(&format!("free {structure}")).map(drop)
    }
}

/// Number of second-level tables of 256 entries that DPDK creates: those that are needed, and some that it
/// reserves.
pub fn dpdk_tables(set: &Routes) -> usize {
    let needed = tables_of_8_bits(set);
    match set.family {
        Family::V4 => needed + 64,
        Family::V6 => needed + needed / 8 + 1024,
    }
}

/// Writes keys to a file, as `struct key_record`.
///
/// # Errors
/// Errors of the file system.
pub fn write_keys(file: &Path, keys: &[Key]) -> Result<(), Failure> {
    let mut to = BufWriter::new(File::create(file)?);
    for key in keys {
        to.write_all(&key.high.to_ne_bytes())?;
        to.write_all(&key.low.to_ne_bytes())?;
    }
    Ok(to.flush()?)
}

/// Writes routes to a file, as `struct route_record`.
///
/// # Errors
/// Errors of the file system.
pub fn write_routes(file: &Path, set: &Routes) -> Result<(), Failure> {
    let mut to = BufWriter::new(File::create(file)?);
    for route in &set.routes {
        to.write_all(&route.first.high.to_ne_bytes())?;
        to.write_all(&route.first.low.to_ne_bytes())?;
        to.write_all(&u32::from(route.length).to_ne_bytes())?;
        to.write_all(&route.leaf.to_ne_bytes())?;
    }
    Ok(to.flush()?)
}

/// Writes endpoints to a file, as `struct endpoint_record`.
///
/// # Errors
/// Errors of the file system.
pub fn write_endpoints(file: &Path, endpoints: Endpoints, answers: &EndpointAnswers) -> Result<(), Failure> {
    let mut to = BufWriter::new(File::create(file)?);
    for number in 0..endpoints.count {
        let (mac, next) = answers.answer(number);
        let key = u64::from(endpoints.vni) << 32 | endpoints.key(number).low;
        to.write_all(&key.to_ne_bytes())?;
        to.write_all(&mac.wrapping_add(u64::from(next) << 32).to_ne_bytes())?;
    }
    Ok(to.flush()?)
}
