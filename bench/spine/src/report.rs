//! What was measured: printed as a table, kept as JSON, recorded in Markdown.

use serde::Serialize;
use std::{fs, io, path::Path};

/// One figure beside one peer's.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// Name of the measure.
    pub measure: String,
    /// Unit of both figures.
    pub unit: &'static str,
    /// Sluice's figure.
    pub ours: f64,
    /// Who is measured beside it, `-` where there is none.
    pub peer: &'static str,
    /// The peer's figure; null where there is none or where it did not finish.
    pub theirs: Option<f64>,
    /// How many times ours is ahead; above 1 is better, whatever the unit.
    pub ratio: Option<f64>,
}

impl Measure {
    /// A figure of which more is better, beside a peer's; `theirs` is `None` where the peer gave none.
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

    /// A figure with no peer.
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

/// Writes `bench/out/NAME.json` and puts `text` between the markers of `name`
/// in `bench/RESULTS.md`, appending them where they are missing.
///
/// # Errors
/// Whatever the file system says.
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

/// The middle of an odd number of rounds (the upper middle of an even one).
pub fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(0.0)
}
