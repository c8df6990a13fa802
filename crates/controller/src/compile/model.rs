//! How packets of a cloud find their way: Zeta's, and the models that its paper
//! compares it with (section VIII-A). `docs/decisions/models.md` says what each is.

use sluice_southbound::ELEPHANT_NEVER;

/// A model of forwarding; a controller runs one, for all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Model {
    /// Clusters of gateways; hosts learn the direct paths of elephants.
    #[default]
    Zeta,
    /// To compare with: hosts are told the direct paths to all instances that theirs may reach.
    Preprogrammed,
    /// To compare with: a primary gateway for each zone of hosts, and backups.
    #[value(name = "gwzone")]
    GwZone,
}

impl Model {
    /// Whether hosts are told all direct paths.
    pub fn preprograms(self) -> bool {
        self == Self::Preprogrammed
    }

    /// Whether a host sends to its zone's gateway, and to no vIPs.
    pub fn has_zones(self) -> bool {
        self == Self::GwZone
    }

    /// What gateways are told is an elephant of a VPC that has `own`. Only under Zeta do they look for
    /// any, unless they are overloaded; a path they must still tell of where hosts ask for it, unless the VPC wants none.
    pub fn gateways_elephant_kbps(self, own: u32) -> u32 {
        match self {
            Self::Zeta => own,
            Self::GwZone if own != ELEPHANT_NEVER => ELEPHANT_NEVER - 1,
            Self::GwZone | Self::Preprogrammed => ELEPHANT_NEVER,
        }
    }

    /// Mixed into what nodes are told of the database: under another model their tables are
    /// of no use, and they are sent a snapshot.
    pub fn salt(self) -> u64 {
        match self {
            Self::Zeta => 0,
            Self::Preprogrammed => 0x9e37_79b9_7f4a_7c15,
            Self::GwZone => 0xbf58_476d_1ce4_e5b9,
        }
    }
}
