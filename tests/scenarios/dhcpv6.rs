//! A VM whose interface identifiers are random (RFC 7217, RFC 8981) gets the address of its port by DHCPv6, from the
//! packet program alone while the agent of its host is killed, and reaches others.

use crate::Ground;
use crate::support::{Outcome, answers, drops, ensure, execute};
use sluice_client::Instance;
use sluice_lab::{Lab, VmState};
use std::net::IpAddr;
use std::time::Duration;

const HOST: &str = "host-a";
/// Longest time until a restarted agent has its controller's state.
const BACK: Duration = Duration::from_secs(30);

/// Random stable identifiers for link-local addresses and those of prefixes, and temporary addresses besides.
const PRIVACY: &str = "echo 3 >/proc/sys/net/ipv6/conf/eth0/addr_gen_mode; \
                       echo 2 >/proc/sys/net/ipv6/conf/eth0/use_tempaddr";

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let name = format!("private-{}", ground.attempt);
    let vm = lab.plug_vm(&name, "web", "front", HOST).await?;
    execute(lab, &name, &["sh", "-ec", PRIVACY]).await?;
    let spoofed = drops(lab, vm.vni, "spoofed_ip").await?;
    execute(lab, HOST, &["ip", "link", "set", &vm.port, "up", "alias", &name]).await?;
    lab.start_vm(&name, &vm).await?;
    is_configured(lab, &name, &vm).await?;

    lab.kill(HOST).await?;
    // Down, the interface loses its IPv6 addresses, and up, it asks for new ones.
    execute(lab, &name, &["ip", "link", "set", "eth0", "down"]).await?;
    let alone = lab.configure_vm(&name, &vm).await;
    let configured = match alone {
        Ok(()) => is_configured(lab, &name, &vm).await,
        Err(error) => Err(error.into()),
    };
    lab.restart(HOST)?;
    lab.synchronized(HOST, BACK).await?;
    configured?;
    let dropped = drops(lab, vm.vni, "spoofed_ip").await? - spoofed;
    ensure!(dropped == 0.0, "{dropped} packets had other sources than the port's addresses");
    lab.unplug_vm(&name).await?;
    lab.api().delete::<Instance>(vm.id, None).await?;
    Ok(())
}

/// Checks that the VM has its address and no other one, none of which is derived from its MAC, and reaches others by it.
async fn is_configured(lab: &Lab, name: &str, vm: &VmState) -> Outcome {
    let shown = lab.exec(name, &["ip", "-6", "-o", "addr", "show", "dev", "eth0"]).await?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let local = sluice_types::eui64_address(&"fe80::/64".parse()?, vm.mac).map(|it| it.to_string());
    ensure!(!shown.contains(&local.unwrap_or_default()), "the link-local address is not random: {shown}");
    let own = vm.ipv6.map(|own| format!("{own}/128")).unwrap_or_default();
    ensure!(shown.contains(&own) && shown.lines().count() == 2, "not just {own} and link-local: {shown}");
    for other in ["web-1", "web-3", "db-2"] {
        for target in lab.vm(other)?.addresses().into_iter().filter(IpAddr::is_ipv6) {
            answers(lab, name, target, &[]).await?;
        }
    }
    Ok(())
}
