//! The kernel's VXLAN device, which encapsulates and decapsulates what the programs do not. This file changes with
//! the properties that the device needs.
//!
//! ```text
//!   device                      what its kernel does with a packet
//!                               with an identity (0x88)    without one (0x08)
//!   with the flag `gbp`         received, sent             received, sent
//!   without it                  dropped; sent as 0x08      received, sent
//! ```

use sluice_agent::Error;
use sluice_agent::netlink::{Link, Netlink};
use sluice_agent::sysctl::{self, Family};
use sluice_agent::underlay::Vteps;
use sluice_types::{VXLAN_OVERHEAD_IPV4, VXLAN_OVERHEAD_IPV6};

/// Name of the device. There is one for each host, and so for each network namespace.
pub const NAME: &str = "sluice-vx";

/// Smallest MTU that IPv6 allows, in bytes.
const MTU_MIN: u32 = 1280;

/// Sets the device up, after creating it unless an earlier agent did. A device of an agent that knew no identities is
/// replaced, because the kernel would drop the packets of all VMs that have one, and does not change the flag. The packets
/// that arrive for the device meanwhile are lost, for some milliseconds.
pub async fn ensure(netlink: &Netlink, uplink: &Link, vteps: Vteps) -> Result<Link, Error> {
    let mtu = mtu(uplink, vteps)?;
    let device = match netlink.link(NAME).await? {
        Some(link) if link.external_vxlan && link.vxlan_gbp => link,
        Some(link) if link.external_vxlan => {
            tracing::warn!(
                device = NAME,
                "replacing the VXLAN device of an earlier version, which cannot carry the identities of security \
                 groups; packets that arrive for it meanwhile are lost"
            );
            netlink.remove_link(&link).await?;
            create(netlink, mtu).await?
        }
        Some(_) => {
            return Err(Error::Config(format!(
                "{NAME} exists, but is not a VXLAN device in external mode: remove it"
            )));
        }
        None => create(netlink, mtu).await?,
    };
    if device.mtu != mtu {
        netlink.set_mtu(&device, mtu).await?;
    }
    // The host's own IPv6 stack must not use the device: no addresses, no router solicitations.
    sysctl::set(Family::V6, NAME, "disable_ipv6", "1")?;
    netlink.set_up(&device).await?;
    Ok(device)
}

async fn create(netlink: &Netlink, mtu: u32) -> Result<Link, Error> {
    let device = netlink.add_vxlan(NAME, mtu).await?;
    tracing::info!(device = NAME, mtu, "created the VXLAN device");
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
