//! Measures: a figure of Sluice with its spread over the rounds, compared with a peer's by pairs of rounds. It
//! changes with what a row of the results tells.

use crate::pairs;
use serde::Serialize;

/// Values of all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Median of the rounds.
    pub median: f64,
    /// Smallest value of a round.
    pub least: f64,
    /// Largest value of a round.
    pub most: f64,
    /// Number of rounds; 0 for a computed value, which has no spread.
    pub rounds: usize,
}

impl Figure {
    /// The figure of these rounds; 0 without a round.
    pub fn of(rounds: &[f64]) -> Self {
        let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if rounds.is_empty() {
            return Self::computed(0.0);
        }
        Self { median: median(rounds.to_vec()), least, most, rounds: rounds.len() }
    }

    /// A value that is the same in every run.
    pub fn computed(value: f64) -> Self {
        Self { median: value, least: value, most: value, rounds: 0 }
    }

    fn text(&self) -> String {
        let median = number(self.median);
        if self.rounds < 2 {
            return median;
        }
        format!("{median} ({}..{})", number(self.least), number(self.most))
    }
}

/// How many times better Sluice is than a peer: above 1 is better, for every unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Median of the ratios of all pairs.
    pub median: f64,
    /// Interval that contains the true median with a confidence of at least [`pairs::CONFIDENCE`]. None if
    /// there are fewer pairs than [`pairs::PAIRS_MIN`], or if the figures are computed.
    pub interval: Option<(f64, f64)>,
}

/// Which direction of a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// A rate: more is better.
    More,
    /// A time or a size: less is better.
    Less,
}

/// A row of the results.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// Name of the measure.
    pub measure: String,
    /// Unit of both figures.
    pub unit: &'static str,
    /// Sluice's figure.
    pub ours: Figure,
    /// Name of the peer, `-` if there is no peer.
    pub peer: &'static str,
    /// Figure of the peer; null if there is no peer or if it did not finish.
    pub theirs: Option<Figure>,
    /// Comparison with the peer; null if a figure is not positive, such as a difference of times.
    pub ratio: Option<Ratio>,
}

impl Measure {
    /// A figure of Sluice without a peer.
    pub fn alone(measure: impl Into<String>, unit: &'static str, rounds: &[f64]) -> Self {
        Self::row(measure.into(), unit, Figure::of(rounds), "-", None, None)
    }

    /// A computed figure without a peer.
    pub fn computed(measure: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self::row(measure.into(), unit, Figure::computed(value), "-", None, None)
    }

    /// Figures of interleaved pairs (Sluice's, the peer's). The two of a pair must have been measured right
    /// after each other.
    pub fn compared(
        measure: impl Into<String>,
        unit: &'static str,
        better: Better,
        peer: &'static str,
        rounds: &[(f64, f64)],
    ) -> Self {
        let (ours, theirs): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
        let ratio = ratio_of(better, rounds);
        Self::row(measure.into(), unit, Figure::of(&ours), peer, Some(Figure::of(&theirs)), ratio)
    }

    /// As [`Measure::compared`], with a list of rounds of each side: the rounds with the same index are a pair.
    pub fn zipped(
        measure: impl Into<String>,
        unit: &'static str,
        better: Better,
        ours: &[f64],
        (peer, theirs): (&'static str, &[f64]),
    ) -> Self {
        let rounds: Vec<(f64, f64)> = ours.iter().copied().zip(theirs.iter().copied()).collect();
        Self::compared(measure, unit, better, peer, &rounds)
    }

    /// Two computed figures.
    pub fn computed_beside(
        measure: impl Into<String>,
        unit: &'static str,
        better: Better,
        ours: f64,
        (peer, theirs): (&'static str, f64),
    ) -> Self {
        let ratio = ratio_of(better, &[(ours, theirs)]);
        Self::row(measure.into(), unit, Figure::computed(ours), peer, Some(Figure::computed(theirs)), ratio)
    }

    /// Figures of two sides that did not take turns, so there is no ratio.
    pub fn apart(
        measure: impl Into<String>,
        unit: &'static str,
        ours: &[f64],
        (peer, theirs): (&'static str, &[f64]),
    ) -> Self {
        Self::row(measure.into(), unit, Figure::of(ours), peer, Some(Figure::of(theirs)), None)
    }

    /// A figure whose peer did not finish.
    pub fn unfinished(
        measure: impl Into<String>,
        unit: &'static str,
        ours: &[f64],
        peer: &'static str,
    ) -> Self {
        Self::row(measure.into(), unit, Figure::of(ours), peer, None, None)
    }

    fn row(
        measure: String,
        unit: &'static str,
        ours: Figure,
        peer: &'static str,
        theirs: Option<Figure>,
        ratio: Option<Ratio>,
    ) -> Self {
        Self { measure, unit, ours, peer, theirs, ratio }
    }
}

/// Ratio of pairs (Sluice's, the peer's); `None` if a figure is not positive.
fn ratio_of(better: Better, rounds: &[(f64, f64)]) -> Option<Ratio> {
    let is_positive = |figure: f64| figure.is_finite() && figure > 0.0;
    let all_positive = rounds.iter().all(|(ours, theirs)| is_positive(*ours) && is_positive(*theirs));
    if rounds.is_empty() || !all_positive {
        return None;
    }
    let ratio = |(ours, theirs): &(f64, f64)| match better {
        Better::More => ours / theirs,
        Better::Less => theirs / ours,
    };
    let mut ratios: Vec<f64> = rounds.iter().map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    Some(Ratio { interval: pairs::interval_of_median(&ratios), median: median(ratios) })
}

/// Four significant digits, and all digits before the decimal point.
fn number(value: f64) -> String {
    let digits_before = if value == 0.0 { 1 } else { value.abs().log10().floor() as i32 + 1 };
    format!("{value:.*}", usize::try_from(4 - digits_before).unwrap_or(0).min(6))
}

/// The measures as a Markdown table.
pub fn table(measures: &[Measure]) -> String {
    let mut text = String::from(
        "| measure | unit | ours (least..most) | peer | theirs (least..most) | ratio [interval] |\n\
         |---|---|--:|---|--:|--:|\n",
    );
    for m in measures {
        let theirs = m.theirs.map_or_else(|| "-".to_owned(), |figure| figure.text());
        let ratio = match m.ratio {
            None => "-".to_owned(),
            Some(Ratio { median, interval: None }) => number(median),
            Some(Ratio { median, interval: Some((low, high)) }) => {
                format!("{} [{}, {}]", number(median), number(low), number(high))
            }
        };
        text.push_str(&format!(
            "| {} | {} | {} | {} | {theirs} | {ratio} |\n",
            m.measure,
            m.unit,
            m.ours.text(),
            m.peer
        ));
    }
    text
}

/// Median of values; the mean of the two middle values if their number is even. 0 without a value.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    if count == 0 {
        return 0.0;
    }
    (values[(count - 1) / 2] + values[count / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a ratio in the wrong direction.
    #[test]
    fn ratios_are_above_1_where_ours_is_better() {
        let ratio = |better, ours, theirs| ratio_of(better, &[(ours, theirs)]).map(|ratio| ratio.median);
        assert_eq!(ratio(Better::More, 4.0, 2.0), Some(2.0));
        assert_eq!(ratio(Better::Less, 50.0, 200.0), Some(4.0));
        assert_eq!(ratio(Better::Less, -0.5, 8.0), None);
        assert_eq!(ratio(Better::More, 1.0, 0.0), None);
    }

    #[test]
    fn interval_is_given_from_ten_pairs_on() {
        let rounds = |count: usize| vec![(2.0, 1.0); count];
        let interval = |count| ratio_of(Better::More, &rounds(count)).unwrap().interval;
        assert_eq!(interval(9), None);
        assert_eq!(interval(10), Some((2.0, 2.0)));
        assert_eq!(ratio_of(Better::More, &[]), None);
    }

    #[test]
    fn rows_have_median_spread_and_interval() {
        let rounds: Vec<(f64, f64)> = (1..=11).map(|round| (f64::from(round), 22.0)).collect();
        let measures = [
            Measure::compared("some_ns", "ns", Better::Less, "peer", &rounds),
            Measure::alone("other_mpps", "Mpps", &[3.0, 1.0]),
            Measure::computed("size_mb", "MB", 131.248),
        ];
        let text = table(&measures);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| some_ns | ns | 6.000 (1.000..11.00) | peer | 22.00 (22.00..22.00) | 3.667 [2.200, 11.00] |",
                "| other_mpps | Mpps | 2.000 (1.000..3.000) | - | - | - |",
                "| size_mb | MB | 131.2 | - | - | - |",
            ]
        );
    }

    #[test]
    fn numbers_have_four_digits() {
        let texts = [0.0, 0.000_512, 0.0561, 3.0461, 114.0, 6_703_128.0, -8.25].map(number);
        assert_eq!(texts, ["0.000", "0.000512", "0.05610", "3.046", "114.0", "6703128", "-8.250"]);
    }
}
