//! The measured programs of user space: told what to do by lines, answering with lines of JSON (`peers/session.h`).

use crate::data::{Family, Key, Routes, tables_of_8_bits};
use crate::endpoints::{Endpoints, Known};
use crate::rig::Timing;
use serde_json::Value;
use sluice_bench_report::shell::Failure;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The core that all of user space is measured on.
const CORE: &str = "0";

/// One of them. Ends with the value.
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

impl Session {
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

    /// The reader of Sluice's tables, over a copy of that map; in huge pages if asked for.
    ///
    /// # Errors
    /// If it does not start.
    pub fn reader(map_id: u32, huge: bool) -> Result<Self, Failure> {
        let pages = if huge { "huge" } else { "small" };
        Self::start(env!("TABLES_READER"), &[&map_id.to_string(), CORE, pages])
    }

    /// DPDK, with so many megabytes; `None` where it was not there when this was built.
    ///
    /// # Errors
    /// If it does not start.
    pub fn dpdk(megabytes: u32) -> Result<Option<Self>, Failure> {
        let Some(program) = option_env!("DPDK_PEERS") else { return Ok(None) };
        Self::start(program, &[CORE, &megabytes.to_string()]).map(Some)
    }

    fn ask(&mut self, line: &str) -> Result<Value, Failure> {
        let input = self.input.as_mut().ok_or("no standard input")?;
        writeln!(input, "{line}")?;
        input.flush()?;
        let mut answer = String::new();
        // Libraries print notes of their own.
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

    /// The keys of all later timings.
    ///
    /// # Errors
    /// The program's.
    pub fn keys(&mut self, file: &Path, vni: u32) -> Result<(), Failure> {
        self.ask(&format!("keys {} {vni}", file.display())).map(drop)
    }

    /// Looks all keys up.
    ///
    /// # Errors
    /// The program's.
    pub fn time(&mut self, structure: &str, way: &str, vni: u32) -> Result<Timing, Failure> {
        let answer = self.ask(&format!("time {structure} {way} {vni}"))?;
        let missing = || format!("no timing of {structure}: {answer}");
        Ok(Timing {
            ns: answer["ns"].as_f64().ok_or_else(missing)?,
            sum: answer["sum"].as_u64().ok_or_else(missing)?,
            found: answer["found"].as_u64().ok_or_else(missing)?,
        })
    }

    /// Fills one of DPDK's structures; the bytes that DPDK allocated for it.
    /// `tables` is how many of 256 entries routes need.
    ///
    /// # Errors
    /// The program's, and where anything did not fit.
    pub fn load(&mut self, structure: &str, file: &Path, tables: usize) -> Result<f64, Failure> {
        let answer = self.ask(&format!("load {structure} {} {tables}", file.display()))?;
        match (answer["failed"].as_u64(), answer["bytes"].as_f64()) {
            (Some(0), Some(bytes)) => Ok(bytes),
            _ => Err(format!("{structure} took not all: {answer}").into()),
        }
    }

    /// Frees one of DPDK's structures.
    ///
    /// # Errors
    /// The program's.
    pub fn free(&mut self, structure: &str) -> Result<(), Failure> {
        self.ask(&format!("free {structure}")).map(drop)
    }
}

/// How many tables of 256 entries DPDK is told to make: those that are needed, and a few that it keeps in reserve.
pub fn dpdk_tables(set: &Routes) -> usize {
    let needed = tables_of_8_bits(set);
    match set.family {
        Family::V4 => needed + 64,
        Family::V6 => needed + needed / 8 + 1024,
    }
}

/// `struct key_record`
///
/// # Errors
/// The file system's.
pub fn write_keys(file: &Path, keys: &[Key]) -> Result<(), Failure> {
    let mut to = BufWriter::new(File::create(file)?);
    for key in keys {
        to.write_all(&key.high.to_ne_bytes())?;
        to.write_all(&key.low.to_ne_bytes())?;
    }
    Ok(to.flush()?)
}

/// `struct route_record`
///
/// # Errors
/// The file system's.
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

/// `struct endpoint_record`
///
/// # Errors
/// The file system's.
pub fn write_endpoints(file: &Path, endpoints: Endpoints, known: &Known) -> Result<(), Failure> {
    let mut to = BufWriter::new(File::create(file)?);
    for number in 0..endpoints.count {
        let (mac, next) = known.answer(number);
        let key = u64::from(endpoints.vni) << 32 | endpoints.key(number).low;
        to.write_all(&key.to_ne_bytes())?;
        to.write_all(&mac.wrapping_add(u64::from(next) << 32).to_ne_bytes())?;
    }
    Ok(to.flush()?)
}
