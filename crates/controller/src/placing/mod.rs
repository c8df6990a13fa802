//! Which cluster carries which VPC: what the algorithms of `sluice_placement` are
//! asked, and what is made of their answers.
//!
//! `picture` puts together what is placed (`ledger`), what is measured (`load`) and
//! what the site wants; `new` places one VPC; `plans` finds moves, which are shown
//! before anything is done, and `apply` carries them out.

pub mod apply;
pub mod new;
pub mod picture;
pub mod plans;

use crate::core::Core;
use crate::load::LoadPicture;
use crate::load::capacity::{CAPACITY_DEFAULT_PPS, CAPACITY_MAX_PPS};
use picture::Picture;
use serde::{Deserialize, Serialize};
use sluice_store::StoreError;
use sluice_types::GatewayId;
use std::collections::BTreeMap;

/// Under which the site's settings are stored.
pub const SETTINGS_KEY: &str = "placement";
/// More clusters than this do not count as few.
const CLUSTERS_PER_TENANT_MAX: usize = 4096;

/// What the site wants of placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// On how many clusters one tenant's VPCs may be: the paper's k.
    pub clusters_per_tenant: usize,
    /// To what part of its packet rate a cluster is filled, at most.
    pub water_level: f64,
    /// Packets a second of a gateway that was never busy enough to tell what it can.
    pub gateway_capacity_pps: u64,
    /// Packets a second of gateways, where the operator knows better than the estimate.
    pub gateways: BTreeMap<GatewayId, u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clusters_per_tenant: 4,
            water_level: 0.8,
            gateway_capacity_pps: CAPACITY_DEFAULT_PPS,
            gateways: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// What is wrong with them: a field, and why.
    ///
    /// # Errors
    /// The first that is out of range.
    pub fn check(&self) -> Result<(), (String, String)> {
        let wrong = |field: &str, why: String| Err((field.to_owned(), why));
        if !(1..=CLUSTERS_PER_TENANT_MAX).contains(&self.clusters_per_tenant) {
            return wrong(
                "clusters_per_tenant",
                format!("a tenant may be on 1 to {CLUSTERS_PER_TENANT_MAX} clusters"),
            );
        }
        if !(self.water_level > 0.0 && self.water_level <= 1.0) {
            return wrong("water_level", "the water level must be above 0 and at most 1".to_owned());
        }
        let rates = [("gateway_capacity_pps".to_owned(), self.gateway_capacity_pps)].into_iter();
        for (field, pps) in
            rates.chain(self.gateways.iter().map(|(id, pps)| (format!("gateways.{id}"), *pps)))
        {
            if !(1..=CAPACITY_MAX_PPS).contains(&pps) {
                return wrong(&field, format!("a gateway forwards 1 to {CAPACITY_MAX_PPS} packets a second"));
            }
        }
        Ok(())
    }
}

/// The site's settings; what was never set is as by default.
///
/// # Errors
/// Of the store.
pub async fn settings(core: &Core) -> Result<Settings, StoreError> {
    match core.store.setting(SETTINGS_KEY).await? {
        None => Ok(Settings::default()),
        Some(text) => serde_json::from_str(&text)
            .map_err(|error| StoreError::Corrupt(format!("the settings of placement: {error}"))),
    }
}

/// What gateways report, and how they are.
pub fn loads(core: &Core) -> LoadPicture {
    LoadPicture { down: core.ownership.down(), owners: core.ownership.all_owners(), ..core.loads.picture() }
}

/// Everything as it is now.
///
/// # Errors
/// Of the store.
pub async fn picture(core: &Core) -> Result<Picture, StoreError> {
    let settings = settings(core).await?;
    let loads = loads(core);
    Ok(core.ledger(|ledger| Picture::new(ledger, &loads, settings)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let field = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check().err().map(|(field, _)| field)
        };
        assert_eq!(field(|_| {}), None);
        assert_eq!(field(|it| it.clusters_per_tenant = 0).as_deref(), Some("clusters_per_tenant"));
        for level in [0.0, -1.0, 1.1, f64::NAN] {
            let settings = Settings { water_level: level, ..Settings::default() };
            assert!(settings.check().is_err(), "{level}");
        }
        assert_eq!(field(|it| it.gateway_capacity_pps = 0).as_deref(), Some("gateway_capacity_pps"));
        let of_gateway = field(|it| it.gateways = [(GatewayId::new(7), u64::MAX)].into());
        assert_eq!(of_gateway.as_deref(), Some("gateways.gw-7"));
    }

    #[test]
    fn settings_of_an_older_version_are_completed() {
        let settings: Settings = serde_json::from_str(r#"{"water_level":0.5}"#).unwrap();
        assert_eq!(settings, Settings { water_level: 0.5, ..Settings::default() });
    }
}
