//! The settings of the vIP scheduler, declared once. This file changes when the scheduler gets another setting.
//!
//! [`scheduler_settings!`](crate::scheduler_settings) is the declaration. [`SchedulerSettings`],
//! [`SchedulerPatch`] and the range check below are derived from it, and so are the OpenAPI schemas of the
//! controller and the options of `sluice scheduler set`.

use serde::{Deserialize, Serialize};

/// Passes the declaration of all numeric settings to a macro: documentation, name, type, default value, unit,
/// and the range of valid values. Loads are fractions: 0.8 is 80%.
#[macro_export]
macro_rules! scheduler_settings {
    ($derive:ident) => {
        $derive! {
            /// Load above which a gateway is overloaded
            overload_threshold: f64 = 0.80, "LOAD", 0.0 to 10.0;
            /// Load at or below which an overloaded gateway counts as relieved
            relief_threshold: f64 = 0.75, "LOAD", 0.0 to 10.0;
            /// Highest load that a gateway may have after it accepted a vIP
            accept_threshold: f64 = 0.70, "LOAD", 0.0 to 10.0;
            /// Maximum number of vIPs that move in one interval
            moves_per_interval: usize = 8, "N", 1 to 1000;
            /// Length of the interval in milliseconds
            interval_ms: u64 = 100, "MS", 1 to 3600000;
            /// Time in milliseconds that a moved vIP stays where it is
            hold_down_ms: u64 = 10000, "MS", 0 to 86400000;
            /// Time in milliseconds to wait for a requested gateway, or for one that comes from another
            /// cluster, and between two of these
            expansion_wait_ms: u64 = 120000, "MS", 0 to 86400000;
            /// Minimum number of gateways that a cluster keeps when it gives one to another cluster
            gateways_min: usize = 2, "N", 1 to 64;
        }
    };
}

/// Settings with which the scheduler cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedulerSettingsError {
    /// A value is out of its range.
    #[error("{setting} must be between {min} and {max}, not {found}")]
    OutOfRange {
        /// Name of the setting.
        setting: &'static str,
        /// Smallest valid value.
        min: String,
        /// Largest valid value.
        max: String,
        /// The value.
        found: String,
    },
    /// The thresholds are not in order. Their order keeps the scheduler from moving vIPs back and forth.
    #[error(
        "thresholds must be 0 < accept_threshold < relief_threshold <= overload_threshold, but they are \
         {accept}, {relief} and {overload}"
    )]
    Order {
        /// Value of `accept_threshold`.
        accept: String,
        /// Value of `relief_threshold`.
        relief: String,
        /// Value of `overload_threshold`.
        overload: String,
    },
}

macro_rules! declare {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $unit:literal, $min:literal to $max:literal;)+) => {
        /// Thresholds and limits of the scheduler.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct SchedulerSettings {
            /// The scheduler moves vIPs; if false, it only shows loads.
            pub enabled: bool,
            $($(#[doc = $doc])+ pub $name: $type,)+
        }

        impl Default for SchedulerSettings {
            fn default() -> Self {
                Self { enabled: true, $($name: $default,)+ }
            }
        }

        /// A change of the settings. Settings that are `None` keep their value.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct SchedulerPatch {
            /// The scheduler moves vIPs; if false, it only shows loads.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub enabled: Option<bool>,
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )+
        }

        impl SchedulerSettings {
            /// The settings after a change.
            #[must_use]
            pub fn patched(self, patch: &SchedulerPatch) -> Self {
                Self {
                    enabled: patch.enabled.unwrap_or(self.enabled),
                    $($name: patch.$name.unwrap_or(self.$name),)+
                }
            }

            fn check_ranges(&self) -> Result<(), SchedulerSettingsError> {
                $(if !($min..=$max).contains(&self.$name) {
                    return Err(SchedulerSettingsError::OutOfRange {
                        setting: stringify!($name),
                        min: $min.to_string(),
                        max: $max.to_string(),
                        found: self.$name.to_string(),
                    });
                })+
                Ok(())
            }
        }
    };
}

scheduler_settings!(declare);

impl SchedulerSettings {
    /// Checks each value, and the order of the thresholds.
    ///
    /// # Errors
    /// The first setting that is invalid.
    pub fn check(&self) -> Result<(), SchedulerSettingsError> {
        self.check_ranges()?;
        let (accept, relief, overload) =
            (self.accept_threshold, self.relief_threshold, self.overload_threshold);
        if 0.0 < accept && accept < relief && relief <= overload {
            return Ok(());
        }
        Err(SchedulerSettingsError::Order {
            accept: accept.to_string(),
            relief: relief.to_string(),
            overload: overload.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_settings_are_valid() {
        assert_eq!(SchedulerSettings::default().check(), Ok(()));
    }

    #[test]
    fn values_out_of_range_are_named() {
        let refused = |change: fn(&mut SchedulerSettings)| {
            let mut settings = SchedulerSettings::default();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert_eq!(refused(|it| it.gateways_min = 0), "gateways_min must be between 1 and 64, not 0");
        assert!(refused(|it| it.hold_down_ms = u64::MAX).starts_with("hold_down_ms must be between 0 and"));
        for load in [f64::NAN, f64::INFINITY, -0.1, 10.1] {
            let settings = SchedulerSettings { overload_threshold: load, ..SchedulerSettings::default() };
            assert!(settings.check().is_err(), "{load}");
        }
    }

    #[test]
    fn thresholds_out_of_order_are_refused() {
        for (accept, relief, overload) in [(0.0, 0.5, 0.6), (0.5, 0.5, 0.6), (0.4, 0.7, 0.6)] {
            let settings = SchedulerSettings {
                accept_threshold: accept,
                relief_threshold: relief,
                overload_threshold: overload,
                ..SchedulerSettings::default()
            };
            assert!(matches!(settings.check(), Err(SchedulerSettingsError::Order { .. })), "{settings:?}");
        }
    }

    #[test]
    fn a_patch_changes_only_what_it_has() {
        let patch: SchedulerPatch = serde_json::from_str(r#"{"hold_down_ms":5,"enabled":false}"#).unwrap();
        let patched = SchedulerSettings::default().patched(&patch);
        let expected = SchedulerSettings { hold_down_ms: 5, enabled: false, ..SchedulerSettings::default() };
        assert_eq!(patched, expected);
        assert_eq!(serde_json::to_string(&patch).unwrap(), r#"{"enabled":false,"hold_down_ms":5}"#);
        assert!(serde_json::from_str::<SchedulerPatch>(r#"{"hold_ms":5}"#).is_err(), "unknown setting");
    }

    #[test]
    fn settings_that_were_never_stored_have_their_default() {
        let stored: SchedulerSettings = serde_json::from_str(r#"{"enabled":false}"#).unwrap();
        assert_eq!(stored, SchedulerSettings { enabled: false, ..SchedulerSettings::default() });
    }
}
