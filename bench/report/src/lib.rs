//! Results of benchmarks: a table for the terminal, JSON, and a section of `bench/RESULTS.md`; statistics of
//! rounds ([`pairs`]); and a runner for the system tools that benchmarks use ([`shell`]).
#![forbid(unsafe_code)]

pub mod pairs;
pub mod shell;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use std::{fs, io, path::Path};

/// Pins the calling thread to a core.
///
/// # Errors
/// Errors of the kernel, such as a core that does not exist.
pub fn stay_on(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    let stays = set.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    stays.map_err(|error| io::Error::other(format!("no core {core} to measure on, two are needed: {error}")))
}

/// A figure of Sluice, with the figure of the peer that it is compared with, if there is one.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// Name of the measure.
    pub measure: String,
    /// Unit of both figures.
    pub unit: &'static str,
    /// Sluice's figure.
    pub ours: f64,
    /// Name of the peer, `-` if there is no peer.
    pub peer: &'static str,
    /// Figure of the peer; null if there is no peer or if it did not finish.
    pub theirs: Option<f64>,
    /// How many times better Sluice is: above 1 is better, for every unit.
    pub ratio: Option<f64>,
}

impl Measure {
    /// A figure of which more is better, compared with a peer's; `theirs` is `None` if the peer has no
    /// figure.
    pub fn beside(
        measure: impl Into<String>,
        unit: &'static str,
        ours: f64,
        peer: &'static str,
        theirs: Option<f64>,
    ) -> Self {
        let ratio = theirs.filter(|theirs| *theirs > 0.0).map(|theirs| ours / theirs);
        Self { measure: measure.into(), unit, ours, peer, theirs, ratio }
    }

    /// A figure of which less is better, such as a time, compared with a peer's; `theirs` is `None` if the
    /// peer has no figure. There is no ratio for a figure of 0 or below, which a difference of times can
    /// be.
    pub fn beside_less(
        measure: impl Into<String>,
        unit: &'static str,
        ours: f64,
        peer: &'static str,
        theirs: Option<f64>,
    ) -> Self {
        let ratio = theirs.filter(|theirs| ours > 0.0 && *theirs > 0.0).map(|theirs| theirs / ours);
        Self { measure: measure.into(), unit, ours, peer, theirs, ratio }
    }

    /// A figure without a peer.
    pub fn alone(measure: impl Into<String>, unit: &'static str, ours: f64) -> Self {
        Self { measure: measure.into(), unit, ours, peer: "-", theirs: None, ratio: None }
    }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}

/// The measures as a Markdown table.
pub fn table(measures: &[Measure]) -> String {
    let mut text =
        String::from("| measure | unit | ours | peer | theirs | ratio |\n|---|---|--:|---|--:|--:|\n");
    for m in measures {
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            m.measure,
            m.unit,
            number(Some(m.ours)),
            m.peer,
            number(m.theirs),
            number(m.ratio)
        ));
    }
    text
}

/// Writes `bench/out/NAME.json` and replaces the text between the markers of `name` in `bench/RESULTS.md`.
/// If the markers are missing, they are appended with the text.
///
/// # Errors
/// Errors of the file system.
pub fn record(bench: &Path, name: &str, measures: &[Measure], text: &str) -> io::Result<()> {
    fs::create_dir_all(bench.join("out"))?;
    fs::write(bench.join("out").join(format!("{name}.json")), serde_json::to_string_pretty(measures)?)?;
    let path = bench.join("RESULTS.md");
    let results = fs::read_to_string(&path).unwrap_or_default();
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let block = format!("{begin}\n{}\n{end}", text.trim_end());
    let merged = match (results.find(&begin), results.find(&end)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{block}{}", &results[..from], &results[to + end.len()..])
        }
        _ => format!("{}\n\n{block}\n", results.trim_end()),
    };
    fs::write(path, merged)
}

/// Median of the rounds; the larger of the two middle values if their number is even, 0 if there is no round.
pub fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(0.0)
}

/// Number of cores and release of the kernel, which are recorded with the figures.
///
/// # Errors
/// If the system does not report them.
pub fn machine() -> Result<String, shell::Failure> {
    let cores = std::thread::available_parallelism()?;
    Ok(format!("{cores} cores, Linux {}", shell::run("uname -r")?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_above_1_where_ours_is_ahead() {
        let ratio = |measure: Measure| measure.ratio;
        assert_eq!(ratio(Measure::beside("mpps", "Mpps", 4.0, "peer", Some(2.0))), Some(2.0));
        assert_eq!(ratio(Measure::beside_less("ns", "ns", 50.0, "peer", Some(200.0))), Some(4.0));
        assert_eq!(ratio(Measure::beside_less("ns", "ns", 50.0, "peer", None)), None);
        assert_eq!(ratio(Measure::beside_less("slowdown", "%", -0.5, "peer", Some(8.0))), None);
    }

    #[test]
    fn records_are_replaced_between_their_markers() {
        let folder = std::env::temp_dir().join(format!("sluice-bench-report-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("RESULTS.md"), "# Results\n\nKept.\n").unwrap();
        let measures = [Measure::alone("some_ns", "ns", 1.0)];
        record(&folder, "some", &measures, "first").unwrap();
        record(&folder, "some", &measures, "second").unwrap();
        let text = fs::read_to_string(folder.join("RESULTS.md")).unwrap();
        let json = fs::read_to_string(folder.join("out/some.json")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(text, "# Results\n\nKept.\n\n<!-- some: begin -->\nsecond\n<!-- some: end -->\n");
        assert!(json.contains("\"some_ns\""), "{json}");
    }
}
