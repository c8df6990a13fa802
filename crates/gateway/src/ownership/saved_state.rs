//! What a gateway's agent saves of its cluster in the state directory, for the next agent. This file changes
//! with the format of the file.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sluice_agent::Error;
use sluice_cluster::{Claim, Config, Member, Table, VipId};
use sluice_types::GatewayId;

use super::plan::GatewayPlan;

/// Name of the file in the state directory.
const FILE: &str = "cluster.json";

/// The saved state: plan, configuration and owners of vIPs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    /// The controller's last plan.
    pub plan: GatewayPlan,
    /// The last configuration, which may be newer than the plan: gateways send it to each other.
    config: SavedConfig,
    /// The owners of vIPs.
    claims: Vec<SavedClaim>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedConfig {
    revision: u64,
    vips: Vec<VipId>,
    members: Vec<SavedMember>,
    #[serde(default, alias = "hello_ms")]
    hello_interval_ms: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedMember {
    gateway: GatewayId,
    draining: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedClaim {
    #[serde(alias = "place")]
    slot: VipId,
    epoch: u64,
    owner: GatewayId,
}

impl SavedState {
    pub fn new(plan: GatewayPlan, config: &Config, table: &Table) -> Self {
        let member = |member: &Member| SavedMember { gateway: member.id, draining: member.draining };
        let claim =
            |(slot, claim): (VipId, Claim)| SavedClaim { slot, epoch: claim.epoch, owner: claim.owner };
        Self {
            plan,
            config: SavedConfig {
                revision: config.revision,
                vips: config.vips.iter().collect(),
                members: config.members.iter().map(member).collect(),
                hello_interval_ms: config.hello_interval_ms,
            },
            claims: table.iter().map(claim).collect(),
        }
    }

    /// The initial state of the cluster's state machine.
    pub fn state(&self) -> (Config, Table) {
        let member = |member: &SavedMember| Member { id: member.gateway, draining: member.draining };
        let claim = |it: &SavedClaim| (it.slot, Claim { epoch: it.epoch, owner: it.owner });
        let config = Config {
            revision: self.config.revision,
            vips: self.config.vips.iter().copied().collect(),
            members: self.config.members.iter().map(member).collect(),
            hello_interval_ms: self.config.hello_interval_ms,
        };
        (config, Table::from_claims(self.claims.iter().map(claim)))
    }

    /// Reads the file; `None` if it is absent or damaged. Then the other gateways and the controller have the
    /// state.
    pub fn read(state_dir: &Path) -> Result<Option<Self>, Error> {
        let path = state_dir.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(format!("read {}", path.display()))(error)),
        };
        match serde_json::from_slice(&text) {
            Ok(saved) => Ok(Some(saved)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the saved owners of vIPs");
                Ok(None)
            }
        }
    }

    /// Replaces the file in one step. It is not forced to the disk: what a power failure destroys, the other
    /// gateways and the controller still have.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        let path = state_dir.join(FILE);
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec(self)?)?;
        fs::rename(&new, path)
    }
}

/// Whether an earlier agent saved what it takes to continue without a snapshot of the controller.
#[must_use]
pub fn has_saved_state(state_dir: &Path) -> bool {
    SavedState::read(state_dir).is_ok_and(|saved| saved.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::{PlannedMember, PlannedVip};
    use sluice_types::{ClusterId, MacAddr};
    use std::net::Ipv4Addr;

    fn saved() -> (GatewayPlan, Table, SavedState) {
        let vip = |slot: u8| PlannedVip {
            slot: VipId::new(slot).unwrap(),
            address: Ipv4Addr::new(192, 0, 2, 100 + slot).into(),
            mac: MacAddr::local(u64::from(slot)),
        };
        let member = |number: u64| PlannedMember {
            gateway: GatewayId::new(number),
            vtep4: Some(Ipv4Addr::new(192, 0, 2, number as u8)),
            vtep6: None,
            draining: number == 2,
        };
        let plan = GatewayPlan {
            cluster: ClusterId::new(4),
            revision: 9,
            vips: vec![vip(0), vip(127)],
            members: vec![member(1), member(2)],
            hello_interval_ms: 40,
        };
        let claim = Claim { epoch: 3, owner: GatewayId::new(2) };
        let table = Table::from_claims([(vip(127).slot, claim)]);
        let saved = SavedState::new(plan.clone(), &plan.config(), &table);
        (plan, table, saved)
    }

    #[test]
    fn written_state_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (plan, table, saved) = saved();
        assert_eq!(SavedState::read(dir.path()).unwrap(), None);
        assert!(!has_saved_state(dir.path()));
        saved.write(dir.path()).unwrap();
        let read = SavedState::read(dir.path()).unwrap().unwrap();
        assert_eq!((&read, read.state()), (&saved, (plan.config(), table)));
        assert!(has_saved_state(dir.path()));
    }

    #[test]
    fn damaged_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), b"{").unwrap();
        assert_eq!(SavedState::read(dir.path()).unwrap(), None);
        assert!(!has_saved_state(dir.path()));
    }

    /// Catches a rename of a field that makes an upgraded agent forget its vIPs.
    #[test]
    fn file_of_an_earlier_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (_, _, saved) = saved();
        let text = serde_json::to_string(&saved).unwrap();
        let old = text.replace("\"slot\"", "\"place\"").replace("\"hello_interval_ms\"", "\"hello_ms\"");
        assert_ne!(old, text);
        fs::write(dir.path().join(FILE), old).unwrap();
        assert_eq!(SavedState::read(dir.path()).unwrap(), Some(saved));
    }
}
