//! A plain VM gets its addresses, routes and MTU by DHCP and router advertisement.

use crate::Ground;
use crate::support::{Outcome, ensure};

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
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
        ensure!(shown.contains(&format!("{ipv6}/64")), "{name}: {ipv6} is not there: {shown}");
        ensure!(shown.contains("mtu 1430") && !shown.contains("dadfailed"), "{name}: {shown}");
        let route = lab.exec(name, &["ip", "-6", "route", "show", "default"]).await?;
        let route = String::from_utf8_lossy(&route.stdout).into_owned();
        ensure!(route.contains("via fe80::1"), "{name}: no default route by advertisement: {route}");
    }
    Ok(())
}
