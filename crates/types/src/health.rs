//! The classes of anomalies that health checks name (Achelous, Table 2). The texts are those of the API, of events and of
//! metrics, and stay the same.

use crate::security::{MatchError, not, texts};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

texts! {
    /// What kind of part is at fault.
    AnomalyClass: "a class of anomalies, such as `nic_fault`",
    /// A server has no processor time or no memory left, or is down.
    ServerResources "server_resources",
    /// What a host has does not agree with what was configured, after a migration or a release.
    StaleConfiguration "stale_configuration",
    /// The network of a VM or container is configured wrongly inside it.
    VmMisconfiguration "vm_misconfiguration",
    /// A VM hangs.
    VmUnresponsive "vm_unresponsive",
    /// A network interface of a server loses or damages packets, or has no link.
    NicFault "nic_fault",
    /// The hypervisor of a VM has let go of its interface.
    HypervisorFault "hypervisor_fault",
    /// A VM that forwards packets cannot take what is sent to it.
    MiddleboxOverload "middlebox_overload",
    /// The processors of a host cannot take the packets that arrive.
    VswitchOverload "vswitch_overload",
    /// A physical switch drops or delays packets.
    SwitchOverload "switch_overload"
}

impl AnomalyClass {
    /// All classes, in the order of Table 2.
    pub const ALL: [Self; 9] = [
        Self::ServerResources,
        Self::StaleConfiguration,
        Self::VmMisconfiguration,
        Self::VmUnresponsive,
        Self::NicFault,
        Self::HypervisorFault,
        Self::MiddleboxOverload,
        Self::VswitchOverload,
        Self::SwitchOverload,
    ];

    /// Those of a host as a whole, which concern all its instances: these may be better off on another host.
    pub const OF_HOST: [Self; 4] =
        [Self::ServerResources, Self::NicFault, Self::VswitchOverload, Self::SwitchOverload];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_is_read_from_its_own_text() {
        for class in AnomalyClass::ALL {
            assert_eq!(class.to_string().parse::<AnomalyClass>().unwrap(), class);
        }
        assert!("fault".parse::<AnomalyClass>().is_err());
    }
}
