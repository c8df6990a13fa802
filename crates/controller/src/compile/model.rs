//! The forwarding models: Zeta's, the same with Achelous' learning, and those that Zeta's paper compares it with (section VIII-A).
//! `docs/decisions/models.md` describes each. This file changes when a model is added, or when a model needs another
//! difference.

use sluice_southbound::ELEPHANT_NEVER;

/// A little less than a period in which hosts add up the bytes of a flow (`crates/vswitch/src/elephants.rs`): a flow that begins at once is
/// an elephant at the beginning of its first and of its second period.
const LASTING_MS: u32 = 200;

/// A forwarding model. A controller uses one model for all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Model {
    /// Gateway clusters; hosts learn the direct paths of elephants.
    #[default]
    Zeta,
    /// Gateway clusters; hosts decide by duration and throughput of their flows which direct paths they learn (Achelous section
    /// 4.3).
    Achelous,
    /// For comparison: hosts get the direct paths to all instances that their own instances can reach, in
    /// advance.
    Preprogrammed,
    /// For comparison: each zone of hosts has one primary gateway, and backups.
    #[value(name = "gwzone")]
    GwZone,
}

impl Model {
    /// Whether hosts get all direct paths in advance.
    pub fn preprograms(self) -> bool {
        self == Self::Preprogrammed
    }

    /// Whether a host sends to the gateway of its zone, instead of to vIPs.
    pub fn has_zones(self) -> bool {
        self == Self::GwZone
    }

    /// How long elephants have to send to a destination, in milliseconds, before their host requests its path. `None`: hosts do not
    /// look for elephants.
    pub fn hosts_detect_after_ms(self) -> Option<u32> {
        match self {
            Self::Achelous => Some(LASTING_MS),
            Self::GwZone => Some(0),
            Self::Zeta | Self::Preprogrammed => None,
        }
    }

    /// The elephant threshold, in kbit/s, that gateways get for a VPC whose own threshold is `own`. Only under Zeta do gateways
    /// look for elephants while they are not overloaded. Where hosts do, gateways must still answer their requests, unless the
    /// VPC disabled direct paths.
    pub fn gateways_elephant_kbps(self, own: u32) -> u32 {
        match self {
            Self::Zeta => own,
            Self::Achelous | Self::GwZone if own != ELEPHANT_NEVER => ELEPHANT_NEVER - 1,
            Self::Achelous | Self::GwZone | Self::Preprogrammed => ELEPHANT_NEVER,
        }
    }

    /// Combined with the id of the database that nodes get. Tables of another model are useless to a node,
    /// and the different id makes it ask for a snapshot.
    pub fn salt(self) -> u64 {
        match self {
            Self::Zeta => 0,
            Self::Preprogrammed => 0x9e37_79b9_7f4a_7c15,
            Self::GwZone => 0xbf58_476d_1ce4_e5b9,
            Self::Achelous => 0x94d0_49bb_1331_11eb,
        }
    }
}
