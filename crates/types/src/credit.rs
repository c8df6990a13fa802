//! Elastic credit: what an instance may use always, at most, and while its host is contended (Achelous section 5.1,
//! algorithm 1). An instance that uses less than its base saves credit, with which it later exceeds its base.

use crate::MAX_RATE_MBPS;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Highest rate of an instance in 1000 packets/s: 400 Gbit/s of the shortest Ethernet frames are 595 million packets/s.
pub const MAX_RATE_KPPS: u32 = 600_000;

/// Most processor time that a host's network processing may spend on an instance, in thousandths of one processor.
pub const MAX_CPU_PERMILLE: u32 = 64_000;

/// Longest time in seconds for which an instance may use its maximum with the credit that it has saved: one day.
pub const CREDIT_SECONDS_MAX: u64 = 86_400;

/// One dimension of a policy: what an instance may use always, at most, and while the host is contended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// What it may use always (`R_base`), at least 1. What it uses less is saved as credit.
    pub base: u32,
    /// What it may use at most, as long as it has credit (`R_max`): at least `base`, at most the limit of the dimension.
    pub max: u32,
    /// What it may use at most while the host is contended and the instance is one of those that use most (`R_tau`):
    /// `base` to `max`.
    pub clamp: u32,
    /// Most credit that it can save (`Credit_max`), in unit-seconds. At most what is spent in [`CREDIT_SECONDS_MAX`] at
    /// `max`. With 0, it never exceeds `base`.
    pub credit: u64,
}

impl Allowance {
    /// Most credit that is possible with this base and maximum.
    #[must_use]
    pub fn credit_max(&self) -> u64 {
        u64::from(self.max.saturating_sub(self.base)) * CREDIT_SECONDS_MAX
    }

    /// Checks the bounds in a dimension.
    fn check(&self, dimension: Dimension) -> Result<(), CreditPolicyError> {
        let Self { base, max, clamp, credit } = *self;
        let limit = dimension.limit();
        if !(1..=limit).contains(&max) {
            return Err(CreditPolicyError::Max { dimension, max, limit });
        }
        if !(1..=max).contains(&base) {
            return Err(CreditPolicyError::Base { dimension, base, max });
        }
        if !(base..=max).contains(&clamp) {
            return Err(CreditPolicyError::Clamp { dimension, clamp, base, max });
        }
        if credit > self.credit_max() {
            return Err(CreditPolicyError::Credit { dimension, credit, most: self.credit_max() });
        }
        Ok(())
    }
}

/// The text of the command line, which [`Allowance::from_str`] reads.
impl fmt::Display for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base, max, clamp, credit } = self;
        write!(f, "base={base},max={max},clamp={clamp},credit={credit}")
    }
}

/// The text is not `base=N,max=N,clamp=N,credit=N`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowanceError {
    /// A part is not a field and its value.
    #[error("`{0}` is not FIELD=NUMBER with a field of base, max, clamp and credit")]
    Part(String),
    /// A value is not a number that the field can have.
    #[error("`{0}` is not a number that `{1}` can have")]
    Number(String, &'static str),
    /// A field has two values.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    /// A field has no value.
    #[error("`{0}` is missing: expected base=N,max=N,clamp=N,credit=N")]
    Missing(&'static str),
}

impl FromStr for Allowance {
    type Err = AllowanceError;

    fn from_str(text: &str) -> Result<Self, AllowanceError> {
        const FIELDS: [&str; 4] = ["base", "max", "clamp", "credit"];
        let mut values: [Option<u64>; 4] = [None; 4];
        for part in text.split(',') {
            let bad = || AllowanceError::Part(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            let index = FIELDS.iter().position(|field| *field == name).ok_or_else(bad)?;
            let number: u64 =
                value.parse().map_err(|_| AllowanceError::Number(value.to_owned(), FIELDS[index]))?;
            if values[index].replace(number).is_some() {
                return Err(AllowanceError::Twice(FIELDS[index]));
            }
        }
        let value = |index: usize| values[index].ok_or(AllowanceError::Missing(FIELDS[index]));
        let rate = |index: usize| {
            let number = value(index)?;
            u32::try_from(number).map_err(|_| AllowanceError::Number(number.to_string(), FIELDS[index]))
        };
        Ok(Self { base: rate(0)?, max: rate(1)?, clamp: rate(2)?, credit: value(3)? })
    }
}

/// What a policy limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Mbit/s of IP packets, of each direction by itself.
    Mbps,
    /// 1000 packets/s, of each direction by itself.
    Kpps,
    /// Thousandths of one processor, of both directions together.
    CpuPermille,
}

impl Dimension {
    /// The name of the field.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mbps => "mbps",
            Self::Kpps => "kpps",
            Self::CpuPermille => "cpu_permille",
        }
    }

    /// The highest `max` that is possible.
    #[must_use]
    pub fn limit(self) -> u32 {
        match self {
            Self::Mbps => MAX_RATE_MBPS,
            Self::Kpps => MAX_RATE_KPPS,
            Self::CpuPermille => MAX_CPU_PERMILLE,
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an instance may use of its host's network. A dimension that is `None` is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreditPolicy {
    /// Mbit/s of IP packets, of each direction by itself, at most [`MAX_RATE_MBPS`].
    #[serde(default)]
    pub mbps: Option<Allowance>,
    /// 1000 packets/s, of each direction by itself, at most [`MAX_RATE_KPPS`].
    #[serde(default)]
    pub kpps: Option<Allowance>,
    /// Thousandths of one processor that the host's network processing spends on the instance, on both directions
    /// together, at most [`MAX_CPU_PERMILLE`].
    #[serde(default)]
    pub cpu_permille: Option<Allowance>,
}

/// A policy has a value that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreditPolicyError {
    /// The policy limits nothing.
    #[error("nothing is limited: at least one of mbps, kpps and cpu_permille is needed")]
    Empty,
    /// The maximum is 0 or above the limit of the dimension.
    #[error("{dimension}.max is {max}, which is not between 1 and {limit}")]
    Max {
        /// Dimension of the value.
        dimension: Dimension,
        /// The maximum.
        max: u32,
        /// The highest one.
        limit: u32,
    },
    /// The base is 0 or above the maximum.
    #[error("{dimension}.base is {base}, which is not between 1 and {dimension}.max, which is {max}")]
    Base {
        /// Dimension of the value.
        dimension: Dimension,
        /// The base.
        base: u32,
        /// The maximum.
        max: u32,
    },
    /// The clamp is below the base or above the maximum.
    #[error(
        "{dimension}.clamp is {clamp}, which is not between {dimension}.base, which is {base}, and {dimension}.max, \
         which is {max}"
    )]
    Clamp {
        /// Dimension of the value.
        dimension: Dimension,
        /// The clamp.
        clamp: u32,
        /// The base.
        base: u32,
        /// The maximum.
        max: u32,
    },
    /// The credit lasts for more than [`CREDIT_SECONDS_MAX`].
    #[error(
        "{dimension}.credit is {credit}, which is more than {most}: so much is spent in a day at {dimension}.max above \
         {dimension}.base"
    )]
    Credit {
        /// Dimension of the value.
        dimension: Dimension,
        /// The credit.
        credit: u64,
        /// The most that is possible.
        most: u64,
    },
}

impl CreditPolicyError {
    /// The field of the policy that has the value, like `mbps.base`.
    #[must_use]
    pub fn field(&self) -> String {
        let value = match self {
            Self::Empty => return self.dimension().to_owned(),
            Self::Max { .. } => "max",
            Self::Base { .. } => "base",
            Self::Clamp { .. } => "clamp",
            Self::Credit { .. } => "credit",
        };
        format!("{}.{value}", self.dimension())
    }

    /// The name of the dimension, the first part of the field.
    #[must_use]
    pub fn dimension(&self) -> &'static str {
        match self {
            Self::Empty => Dimension::Mbps.name(),
            Self::Max { dimension, .. }
            | Self::Base { dimension, .. }
            | Self::Clamp { dimension, .. }
            | Self::Credit { dimension, .. } => dimension.name(),
        }
    }
}

impl CreditPolicy {
    fn dimensions(&self) -> [(Dimension, Option<Allowance>); 3] {
        [
            (Dimension::Mbps, self.mbps),
            (Dimension::Kpps, self.kpps),
            (Dimension::CpuPermille, self.cpu_permille),
        ]
    }

    /// Checks that the policy limits something, and that all values are in their bounds.
    ///
    /// # Errors
    /// The first value that is out of its bounds.
    pub fn validate(&self) -> Result<(), CreditPolicyError> {
        if self.dimensions().iter().all(|(_, allowance)| allowance.is_none()) {
            return Err(CreditPolicyError::Empty);
        }
        self.dimensions()
            .into_iter()
            .try_for_each(|(dimension, allowance)| allowance.map_or(Ok(()), |it| it.check(dimension)))
    }
}

/// One line, like `mbps base=100,max=400,clamp=100,credit=3000; kpps base=10,max=40,clamp=20,credit=300`.
impl fmt::Display for CreditPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (dimension, allowance) in self.dimensions() {
            if let Some(allowance) = allowance {
                write!(f, "{separator}{dimension} {allowance}")?;
                separator = "; ";
            }
        }
        if separator.is_empty() { f.write_str("not limited") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLD: Allowance = Allowance { base: 100, max: 400, clamp: 100, credit: 3000 };

    /// Catches bounds that are off by one, and errors that name another field.
    #[test]
    fn values_are_within_their_bounds() {
        let mbps = |allowance| CreditPolicy { mbps: Some(allowance), ..CreditPolicy::default() };
        let day = 300 * 86_400;
        for good in [
            GOLD,
            Allowance { credit: 0, ..GOLD },
            Allowance { clamp: 400, ..GOLD },
            Allowance { credit: day, ..GOLD },
            Allowance { base: 400, clamp: 400, credit: 0, ..GOLD },
            Allowance { base: 1, max: 400_000, clamp: 1, credit: 399_999 * 86_400 },
        ] {
            assert_eq!(mbps(good).validate(), Ok(()), "{good}");
        }
        for (bad, field) in [
            (Allowance { max: 0, ..GOLD }, "mbps.max"),
            (Allowance { max: 400_001, ..GOLD }, "mbps.max"),
            (Allowance { base: 0, ..GOLD }, "mbps.base"),
            (Allowance { base: 401, ..GOLD }, "mbps.base"),
            (Allowance { clamp: 99, ..GOLD }, "mbps.clamp"),
            (Allowance { clamp: 401, ..GOLD }, "mbps.clamp"),
            (Allowance { credit: day + 1, ..GOLD }, "mbps.credit"),
            (Allowance { base: 400, clamp: 400, credit: 1, ..GOLD }, "mbps.credit"),
            (Allowance { credit: u64::MAX, ..GOLD }, "mbps.credit"),
        ] {
            let error = mbps(bad).validate().unwrap_err();
            assert_eq!(error.field(), field, "{bad}");
            assert!(error.to_string().starts_with(&format!("{field} is ")), "{error}");
        }
        assert_eq!(CreditPolicy::default().validate(), Err(CreditPolicyError::Empty));
        let at = |max| Some(Allowance { max, ..GOLD });
        let kpps = |max| CreditPolicy { kpps: at(max), ..CreditPolicy::default() }.validate();
        assert!(kpps(600_000).is_ok() && kpps(600_001).unwrap_err().field() == "kpps.max");
        let cpu = |max| CreditPolicy { cpu_permille: at(max), ..CreditPolicy::default() }.validate();
        assert!(cpu(64_000).is_ok() && cpu(64_001).unwrap_err().field() == "cpu_permille.max");
        let second = CreditPolicy { mbps: Some(GOLD), kpps: at(0), cpu_permille: None };
        assert_eq!(
            second.validate().unwrap_err().to_string(),
            "kpps.max is 0, which is not between 1 and 600000"
        );
    }

    #[test]
    fn texts_of_allowances_are_read_again() {
        let text = "base=100,max=400,clamp=100,credit=3000";
        assert_eq!(text.parse::<Allowance>(), Ok(GOLD));
        assert_eq!(GOLD.to_string(), text);
        assert_eq!("credit=3000,max=400,base=100,clamp=100".parse::<Allowance>(), Ok(GOLD));
        for (text, part) in [
            ("", "`` is not FIELD=NUMBER"),
            ("base=1,max=2,clamp=1", "`credit` is missing"),
            ("base=1,base=2", "`base` is given twice"),
            ("base=x", "`x` is not a number that `base` can have"),
            ("base=4294967296,max=2,clamp=1,credit=0", "`4294967296` is not a number that `base`"),
            ("rate=1", "`rate=1` is not FIELD=NUMBER"),
        ] {
            let error = text.parse::<Allowance>().unwrap_err().to_string();
            assert!(error.starts_with(part), "{error}");
        }
    }

    #[test]
    fn policies_are_shown_on_one_line() {
        let policy = CreditPolicy { mbps: Some(GOLD), kpps: None, cpu_permille: Some(GOLD) };
        let expected = "mbps base=100,max=400,clamp=100,credit=3000; cpu_permille base=100,max=400,clamp=100,credit=3000";
        assert_eq!(policy.to_string(), expected);
        assert_eq!(CreditPolicy::default().to_string(), "not limited");
    }

    /// Catches a misspelled field that is taken for one that is absent.
    #[test]
    fn unknown_fields_are_errors() {
        let read = |text: &str| serde_json::from_str::<CreditPolicy>(text);
        let policy = CreditPolicy { kpps: Some(GOLD), ..CreditPolicy::default() };
        let text = r#"{"kpps":{"base":100,"max":400,"clamp":100,"credit":3000},"mbps":null}"#;
        assert_eq!(read(text).unwrap(), policy);
        assert!(read(r#"{"pps":null}"#).is_err());
        assert!(read(r#"{"mbps":{"base":1,"max":1,"clamp":1}}"#).is_err());
        assert!(read(r#"{"mbps":{"base":1,"max":1,"clamp":1,"credit":0,"tau":1}}"#).is_err());
    }
}
