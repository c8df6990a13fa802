//! A run of a bench: what is recorded with its figures, and its section of `bench/RESULTS.md`. It changes with
//! what a reader must know to judge or repeat a run.

use crate::measure::{Measure, table};
use crate::shell::{self, Failure};
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// Set by `make bench` to the time at which it began, so that sections of the same run can be recognized.
const WHOLE_RUN: &str = "SLUICE_BENCH_RUN";

/// The file of results, in the directory of the benches.
const RESULTS: &str = "RESULTS.md";

/// Processor time of the machine in ticks, since it started.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: u64,
    /// Ticks in which the hypervisor ran something else.
    stolen: u64,
}

/// A run that has begun.
pub struct Run {
    /// Name of the section and of the file of figures.
    name: &'static str,
    commit: String,
    begun: String,
    load: String,
    ticks: Ticks,
}

impl Run {
    /// Begins a run of `make bench-NAME`.
    ///
    /// # Errors
    /// If the system does not report its load or its processor time.
    pub fn begin(name: &'static str) -> Result<Self, Failure> {
        let load = fs::read_to_string("/proc/loadavg")?;
        Ok(Self {
            name,
            commit: commit(),
            begun: shell::run("date -u +%Y-%m-%dT%H:%MZ")?.trim().to_owned(),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
            ticks: ticks()?,
        })
    }

    /// The section of this run: `title`, then what was run where, `how` in a few words, `method`, the table
    /// and the notes.
    ///
    /// # Errors
    /// If the system does not report what it is.
    pub fn section(
        &self,
        title: &str,
        how: &str,
        method: &str,
        measures: &[Measure],
        notes: &[String],
    ) -> Result<String, Failure> {
        let mut text = format!("## {title}\n\n{}; {how}.\n", self.description()?);
        write!(text, "\n{}\n\n{}", method.trim(), table(measures))?;
        if !notes.is_empty() {
            text.push('\n');
        }
        for note in notes {
            writeln!(text, "- {note}")?;
        }
        Ok(text)
    }

    fn description(&self) -> Result<String, Failure> {
        let command = match std::env::var(WHOLE_RUN) {
            Ok(begun) => format!("`make bench` begun at {begun}, this part at {}", self.begun),
            Err(_) => format!("`make bench-{}` alone, begun at {}", self.name, self.begun),
        };
        let now = ticks()?;
        let stolen =
            (now.stolen - self.ticks.stolen) as f64 * 100.0 / (now.all - self.ticks.all).max(1) as f64;
        Ok(format!(
            "{command}, commit {}. {}; load average at the start {}, {stolen:.1}% of the processor time stolen",
            self.commit,
            machine()?,
            self.load
        ))
    }

    /// Prints the section. A whole run is also recorded in `out/NAME.json` and `RESULTS.md`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn finish(&self, measures: &[Measure], section: &str, is_whole: bool) -> io::Result<()> {
        print!("{section}");
        if is_whole {
            return self.record(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), measures, section);
        }
        eprintln!("bench-{}: not recorded, because this was not a whole run", self.name);
        Ok(())
    }

    /// Writes `out/NAME.json` and replaces the text between the markers of this bench in `RESULTS.md`, both in
    /// `bench`. If both markers are missing, they are appended with the text.
    ///
    /// # Errors
    /// Errors of the file system, and a marker without the other one. The file is not changed then.
    fn record(&self, bench: &Path, measures: &[Measure], text: &str) -> io::Result<()> {
        fs::create_dir_all(bench.join("out"))?;
        let json = serde_json::to_string_pretty(measures)?;
        fs::write(bench.join("out").join(format!("{}.json", self.name)), json)?;
        let path = bench.join(RESULTS);
        let results = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let (begin, end) = (format!("<!-- {}: begin -->", self.name), format!("<!-- {}: end -->", self.name));
        let block = format!("{begin}\n{}\n{end}", text.trim_end());
        let merged = match (results.find(&begin), results.find(&end)) {
            (Some(from), Some(to)) if from < to => {
                format!("{}{block}{}", &results[..from], &results[to + end.len()..])
            }
            (None, None) => format!("{}\n\n{block}\n", results.trim_end()),
            _ => {
                let path = path.display();
                return Err(io::Error::other(format!(
                    "{path} must contain {begin} and then {end}, or neither"
                )));
            }
        };
        fs::write(path, merged)
    }
}

/// Commit of the sources, and whether files other than the results differ from it.
fn commit() -> String {
    let git = |arguments: &str| shell::run(&format!("git -C {} {arguments}", env!("CARGO_MANIFEST_DIR")));
    let Ok(commit) = git("rev-parse --short=10 HEAD") else { return "unknown".to_owned() };
    // An earlier bench of the same run has changed the results.
    let changes = git("status --porcelain --untracked-files=no").unwrap_or_default();
    let is_changed = changes.lines().any(|line| !line.ends_with(RESULTS));
    format!("{}{}", commit.trim(), if is_changed { " with uncommitted changes" } else { "" })
}

fn ticks() -> Result<Ticks, Failure> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().find(|line| line.starts_with("cpu ")).ok_or("/proc/stat has no line cpu")?;
    Ok(parse_ticks(line))
}

/// The fields are user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
fn parse_ticks(line: &str) -> Ticks {
    let fields: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
    Ticks { all: fields.iter().sum(), stolen: fields.get(7).copied().unwrap_or_default() }
}

/// Processor, cores, memory and kernel.
fn machine() -> Result<String, Failure> {
    let cores = std::thread::available_parallelism()?;
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let model = processors.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown processor");
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kib: u64 = memory.split_whitespace().nth(1).ok_or("/proc/meminfo is empty")?.parse()?;
    let kernel = shell::run("uname -r")?;
    // What follows the version may name who built the kernel.
    let version = kernel.trim().split('-').next().unwrap_or_default();
    Ok(format!("{cores} cores of {model}, {:.0} GB of memory, Linux {version}", kib as f64 * 1024.0 / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn run() -> Run {
        Run::begin("some").expect("/proc is readable")
    }

    #[test]
    fn section_says_what_was_run_where() {
        let measures = [Measure::computed("some_mb", "MB", 1.0)];
        let text = run().section("Some", "3 rounds", "How.", &measures, &["a note".to_owned()]).unwrap();
        assert!(text.starts_with("## Some\n\n`make bench"), "{text}");
        for wanted in
            [", commit ", " cores of ", "% of the processor time stolen; 3 rounds.\n\nHow.\n\n| measure "]
        {
            assert!(text.contains(wanted), "{wanted:?} is not in {text}");
        }
        assert!(text.ends_with("| some_mb | MB | 1.000 | - | - | - |\n\n- a note\n"), "{text}");
    }

    #[test]
    fn stolen_ticks_are_the_eighth_field() {
        assert_eq!(parse_ticks("cpu  1 2 3 4 5 6 7 8 100 100"), Ticks { all: 36, stolen: 8 });
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sluice-bench-report-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn results_that_cannot_be_replaced_stay() {
        let folder = folder("stay");
        let results = folder.join("RESULTS.md");
        let contents: [&[u8]; 3] =
            [b"<!-- some: begin -->\nKept.\n", b"Kept.\n<!-- some: end -->\n", b"no UTF-8: \xff"];
        let outcomes = contents.map(|content| {
            fs::write(&results, content).unwrap();
            (run().record(&folder, &[], "text").is_err(), fs::read(&results).unwrap() == content)
        });
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(outcomes, [(true, true); 3]);
    }

    #[test]
    fn records_are_replaced_between_their_markers() {
        let folder = folder("replaced");
        fs::write(folder.join("RESULTS.md"), "# Results\n\nKept.\n").unwrap();
        let measures = [Measure::computed("some_ns", "ns", 1.0)];
        run().record(&folder, &measures, "first").unwrap();
        run().record(&folder, &measures, "second").unwrap();
        let text = fs::read_to_string(folder.join("RESULTS.md")).unwrap();
        let json = fs::read_to_string(folder.join("out/some.json")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(text, "# Results\n\nKept.\n\n<!-- some: begin -->\nsecond\n<!-- some: end -->\n");
        assert!(json.contains("\"some_ns\""), "{json}");
    }
}
