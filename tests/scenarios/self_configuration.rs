//! A plain VM gets its addresses, routes and MTU by DHCP and router advertisement: its IPv6 address by DHCPv6 or
//! from the kernel, as its subnet says.

use crate::Ground;
use crate::support::{Outcome, ensure};
use sluice_client::Subnet;
use sluice_types::Ipv6Mode;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let subnets = lab.api().list::<Subnet>(&[], None).await?;
    for mode in [Ipv6Mode::Dhcp, Ipv6Mode::Slaac] {
        ensure!(subnets.iter().any(|subnet| subnet.ipv6_mode == Some(mode)), "no subnet has mode {mode}");
    }
    for (name, vm) in &lab.state().vms {
        let (Some(ipv4), Some(ipv6)) = (vm.ipv4, vm.ipv6) else {
            ensure!(false, "{name} has not both families in the API");
            continue;
        };
        let lease = std::fs::read_to_string(lab.paths().lease(name))?;
        let router = std::net::Ipv4Addr::from((u32::from(ipv4) & 0xffff_ff00) | 1);
        for line in [format!("ip={ipv4}"), "mask=24".into(), format!("router={router}"), "mtu=1430".into()] {
            ensure!(lease.lines().any(|own| own == line), "{name}: the lease lacks {line}: {lease}");
        }
        let shown = lab.exec(name, &["ip", "-6", "addr", "show", "dev", "eth0", "scope", "global"]).await?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        // An address of DHCPv6 says nothing about the link. The kernel derives no other one in such a subnet.
        let length = if vm.ipv6_mode == Some(Ipv6Mode::Dhcp) { 128 } else { 64 };
        ensure!(shown.contains(&format!("{ipv6}/{length}")), "{name}: {ipv6}/{length} is not there: {shown}");
        ensure!(shown.matches("inet6").count() == 1, "{name}: not one global address: {shown}");
        ensure!(shown.contains("mtu 1430") && !shown.contains("dadfailed"), "{name}: {shown}");
        let route = lab.exec(name, &["ip", "-6", "route", "show", "default"]).await?;
        let route = String::from_utf8_lossy(&route.stdout).into_owned();
        ensure!(route.contains("via fe80::1"), "{name}: no default route by advertisement: {route}");
    }
    Ok(())
}
