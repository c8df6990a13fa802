//! The kernel's VXLAN device, through which the programs encapsulate and decapsulate.

use sluice_agent::Error;
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::sysctl::{self, Family};
use sluice_agent::underlay::Vteps;
use sluice_types::{VXLAN_OVERHEAD_IPV4, VXLAN_OVERHEAD_IPV6};

/// Its name. One for each host, and so for each network namespace.
pub const NAME: &str = "sluice-vx";

/// Smallest MTU that IPv6 allows.
const MTU_MIN: u32 = 1280;

/// The device, made unless a predecessor made it, and up.
pub async fn ensure(netlink: &Netlink, uplink: &Link, vteps: Vteps) -> Result<Link, Error> {
    let mtu = mtu(uplink, vteps)?;
    let device = match netlink.link(NAME).await? {
        Some(link) if link.external_vxlan => link,
        Some(_) => {
            return Err(Error::Config(format!(
                "{NAME} exists, but is no VXLAN device in external mode: remove it"
            )));
        }
        None => {
            let device = netlink.add_vxlan(NAME, mtu).await?;
            tracing::info!(device = NAME, mtu, "made the VXLAN device");
            device
        }
    };
    if device.mtu != mtu {
        netlink.set_mtu(&device, mtu).await?;
    }
    // The kernel's own stack has no business here: no addresses, no router solicitations.
    sysctl::set(Family::V6, NAME, "disable_ipv6", "1")?;
    netlink.set_up(&device).await?;
    Ok(device)
}

/// The longest tenant IP packet that the tunnel carries.
pub fn mtu(uplink: &Link, vteps: Vteps) -> Result<u32, Error> {
    let overhead = if vteps.v4.is_some() { VXLAN_OVERHEAD_IPV4 } else { VXLAN_OVERHEAD_IPV6 };
    let mtu = uplink.mtu.saturating_sub(overhead.into());
    if mtu < MTU_MIN {
        return Err(Error::Config(format!(
            "the MTU of {} is {}: with {overhead} bytes of VXLAN headers less than {MTU_MIN} are left",
            uplink.name, uplink.mtu
        )));
    }
    Ok(mtu)
}

/// Removes the device, if it is there.
pub async fn remove(netlink: &Netlink) -> Result<(), Error> {
    match netlink.link(NAME).await? {
        Some(link) if link.external_vxlan => netlink.remove_link(&link).await,
        _ => Ok(()),
    }
}
