//! Members of services, among which the flows to the services' mounts are spread (Achelous, section 5.2).

use crate::MacAddr;
use crate::security::{MatchError, not, texts};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Most members of a service: their numbers are 1 to this.
pub const SERVICE_MEMBERS_MAX: u8 = 127;

/// A member of a service, as nodes know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceMember {
    /// Its number within the service, 1 to [`SERVICE_MEMBERS_MAX`].
    pub number: u8,
    /// The MAC address of its bonding vNICs.
    pub mac: MacAddr,
    /// The VTEP of its host.
    pub host: IpAddr,
    /// New flows go to it; otherwise only flows that have it already.
    pub selected: bool,
}

texts! {
    /// Whether a member of a service works, as hosts and gateways have reported.
    #[derive(Default)]
    MemberStatus: "a state of a member: expected `waiting`, `up`, `vm_silent` or `host_unreachable`",
    /// Its host has not reported it. The default.
    #[default]
    Waiting "waiting",
    /// Its VM answers the probes of its host.
    Up "up",
    /// Its VM does not answer the probes of its host.
    VmSilent "vm_silent",
    /// No gateway that watches its host reaches it.
    HostUnreachable "host_unreachable"
}

impl MemberStatus {
    /// It was reported, and does not work.
    #[must_use]
    pub fn is_down(self) -> bool {
        matches!(self, Self::VmSilent | Self::HostUnreachable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_texts_of_the_api() {
        for (text, status, is_down) in [
            ("waiting", MemberStatus::Waiting, false),
            ("up", MemberStatus::Up, false),
            ("vm_silent", MemberStatus::VmSilent, true),
            ("host_unreachable", MemberStatus::HostUnreachable, true),
        ] {
            assert_eq!((text.parse(), status.to_string().as_str()), (Ok(status), text));
            assert_eq!(status.is_down(), is_down);
        }
        assert!("down".parse::<MemberStatus>().is_err());
    }
}
