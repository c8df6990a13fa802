//! The kernel's VXLAN device, which encapsulates and decapsulates what the programs do not. This file changes with
//! the properties that the device needs.

use sluice_agent::Error;
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::sysctl::{self, Family};
use sluice_agent::underlay::Vteps;
use sluice_types::{VXLAN_OVERHEAD_IPV4, VXLAN_OVERHEAD_IPV6};

/// Name of the device. There is one for each host, and so for each network namespace.
pub const NAME: &str = "sluice-vx";

/// Smallest MTU that IPv6 allows, in bytes.
const MTU_MIN: u32 = 1280;

/// Sets the device up, after creating it unless an earlier agent did.
pub async fn ensure(netlink: &Netlink, uplink: &Link, vteps: Vteps) -> Result<Link, Error> {
    let mtu = mtu(uplink, vteps)?;
    let device = match netlink.link(NAME).await? {
        Some(link) if link.external_vxlan => link,
        Some(_) => {
            return Err(Error::Config(format!(
                "{NAME} exists, but is not a VXLAN device in external mode: remove it"
            )));
        }
        None => {
            let device = netlink.add_vxlan(NAME, mtu).await?;
            tracing::info!(device = NAME, mtu, "created the VXLAN device");
            device
        }
    };
    if device.mtu != mtu {
        netlink.set_mtu(&device, mtu).await?;
    }
    // The host's own IPv6 stack must not use the device: no addresses, no router solicitations.
    sysctl::set(Family::V6, NAME, "disable_ipv6", "1")?;
    netlink.set_up(&device).await?;
    Ok(device)
}

/// Bytes of the longest tenant IP packet that the tunnel carries.
pub fn mtu(uplink: &Link, vteps: Vteps) -> Result<u32, Error> {
    let overhead = if vteps.v4.is_some() { VXLAN_OVERHEAD_IPV4 } else { VXLAN_OVERHEAD_IPV6 };
    let mtu = uplink.mtu.saturating_sub(overhead.into());
    if mtu < MTU_MIN {
        return Err(Error::Config(format!(
            "the MTU of {} is {}: {overhead} bytes of VXLAN headers leave less than {MTU_MIN} bytes for \
             tenants",
            uplink.name, uplink.mtu
        )));
    }
    Ok(mtu)
}

/// Removes the device if it exists.
pub async fn remove(netlink: &Netlink) -> Result<(), Error> {
    match netlink.link(NAME).await? {
        Some(link) if link.external_vxlan => netlink.remove_link(&link).await,
        _ => Ok(()),
    }
}
