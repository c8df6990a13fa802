//! The settings of placement, declared once. This file changes when placement gets another setting.
//!
//! [`placement_settings!`](crate::placement_settings) is the declaration. [`PlacementSettings`],
//! [`PlacementSettingsPatch`] and the range check below are derived from it, and so are the OpenAPI schemas of
//! the controller and the options of `sluice placement set`. Only the capacities of single gateways, which are
//! a map, are declared beside it.

use crate::GatewayId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Capacity of a gateway that neither reports nor estimates one, in packets per second.
pub const GATEWAY_CAPACITY_PPS_DEFAULT: u64 = 1_000_000;
/// Highest capacity of a gateway, in packets per second, so that sums of capacities stay exact.
pub const GATEWAY_CAPACITY_PPS_MAX: u64 = 2_000_000_000;

/// Passes the declaration of all settings with one value to a macro: documentation, name, type, default value,
/// unit and command-line option, and the range of valid values.
#[macro_export]
macro_rules! placement_settings {
    ($derive:ident) => {
        $derive! {
            /// Maximum number of clusters that the VPCs of one tenant may be on
            clusters_per_tenant: usize = 4, "K" "clusters-per-tenant", 1 to 4096;
            /// Highest load to which placement fills a cluster, as a fraction of its packet rate: 0.8 is 80%
            water_level: f64 = 0.8, "FRACTION" "water-level", 0.01 to 1.0;
            /// Capacity in packets per second of a gateway whose capacity is neither set nor estimated
            gateway_capacity_pps: u64 = 1000000, "PPS" "gateway-capacity", 1 to 2000000000;
        }
    };
}

/// A setting of placement is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} must be between {min} and {max}, not {found}")]
pub struct PlacementSettingsError {
    /// Name of the setting, or `gateways.ID` for the capacity of one gateway.
    pub setting: String,
    /// Smallest valid value.
    pub min: String,
    /// Largest valid value.
    pub max: String,
    /// The value.
    pub found: String,
}

macro_rules! declare {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $unit:literal $option:literal, $min:literal to $max:literal;)+) => {
        /// Limits of placement.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct PlacementSettings {
            $($(#[doc = $doc])+ pub $name: $type,)+
            /// Capacities in packets per second that the operator set for single gateways
            pub gateways: BTreeMap<GatewayId, u64>,
        }

        impl Default for PlacementSettings {
            fn default() -> Self {
                Self { $($name: $default,)+ gateways: BTreeMap::new() }
            }
        }

        /// A change of the settings. Settings that are `None` keep their value.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct PlacementSettingsPatch {
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )+
            /// Capacities in packets per second by gateway; `None` returns to the estimate
            #[serde(default)]
            pub gateways: BTreeMap<GatewayId, Option<u64>>,
        }

        impl PlacementSettings {
            /// The settings after a change.
            #[must_use]
            pub fn patched(mut self, patch: &PlacementSettingsPatch) -> Self {
                $(self.$name = patch.$name.unwrap_or(self.$name);)+
                for (id, pps) in &patch.gateways {
                    match pps {
                        Some(pps) => self.gateways.insert(*id, *pps),
                        None => self.gateways.remove(id),
                    };
                }
                self
            }

            fn check_ranges(&self) -> Result<(), PlacementSettingsError> {
                $(
                    let (min, max): ($type, $type) = ($min, $max);
                    if !(min..=max).contains(&self.$name) {
                        return Err(PlacementSettingsError {
                            setting: stringify!($name).to_owned(),
                            min: min.to_string(),
                            max: max.to_string(),
                            found: self.$name.to_string(),
                        });
                    }
                )+
                Ok(())
            }
        }
    };
}

placement_settings!(declare);

impl PlacementSettings {
    /// Checks the range of each setting, and of the capacity of each gateway.
    ///
    /// # Errors
    /// The first setting that is invalid.
    pub fn check(&self) -> Result<(), PlacementSettingsError> {
        self.check_ranges()?;
        let invalid = |(_, pps): &(&GatewayId, &u64)| !(1..=GATEWAY_CAPACITY_PPS_MAX).contains(*pps);
        match self.gateways.iter().find(invalid) {
            None => Ok(()),
            Some((id, pps)) => Err(PlacementSettingsError {
                setting: format!("gateways.{id}"),
                min: 1.to_string(),
                max: GATEWAY_CAPACITY_PPS_MAX.to_string(),
                found: pps.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let refused = |change: fn(&mut PlacementSettings)| {
            let mut settings = PlacementSettings::default();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert_eq!(PlacementSettings::default().check(), Ok(()));
        assert_eq!(
            refused(|it| it.clusters_per_tenant = 0),
            "clusters_per_tenant must be between 1 and 4096, not 0"
        );
        for level in [0.0, -1.0, 1.1, f64::NAN] {
            let settings = PlacementSettings { water_level: level, ..PlacementSettings::default() };
            assert!(settings.check().is_err(), "{level}");
        }
        assert!(refused(|it| it.gateway_capacity_pps = 0).starts_with("gateway_capacity_pps must be"));
        assert!(
            refused(|it| it.gateways = [(GatewayId::new(7), 0)].into()).starts_with("gateways.gw-7 must")
        );
    }

    #[test]
    fn range_and_default_of_the_capacity_are_those_of_the_constants() {
        let capacity =
            |gateway_capacity_pps| PlacementSettings { gateway_capacity_pps, ..Default::default() };
        assert_eq!(PlacementSettings::default(), capacity(GATEWAY_CAPACITY_PPS_DEFAULT));
        assert_eq!(capacity(GATEWAY_CAPACITY_PPS_MAX).check(), Ok(()));
        assert!(capacity(GATEWAY_CAPACITY_PPS_MAX + 1).check().is_err());
    }

    #[test]
    fn a_patch_changes_only_what_it_has() {
        let (kept, removed) = (GatewayId::new(1), GatewayId::new(2));
        let settings =
            PlacementSettings { gateways: [(kept, 5), (removed, 6)].into(), ..PlacementSettings::default() };
        let patch = r#"{"water_level":0.5,"gateways":{"gw-2":null}}"#;
        let patch: PlacementSettingsPatch = serde_json::from_str(patch).unwrap();
        let expected = PlacementSettings {
            water_level: 0.5,
            gateways: [(kept, 5)].into(),
            ..PlacementSettings::default()
        };
        assert_eq!(settings.patched(&patch), expected);
        assert!(serde_json::from_str::<PlacementSettingsPatch>(r#"{"k":5}"#).is_err(), "unknown setting");
    }

    #[test]
    fn settings_that_were_never_stored_have_their_default() {
        let stored: PlacementSettings = serde_json::from_str(r#"{"water_level":0.5}"#).unwrap();
        assert_eq!(stored, PlacementSettings { water_level: 0.5, ..PlacementSettings::default() });
    }
}
