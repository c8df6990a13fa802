//! The kernel's own VXLAN device works as a host, on either underlay.

use crate::Ground;
use crate::support::{Outcome, Probe, answers, ensure, eventually, ping, who};
use sluice_lab::{Foreign, Lab};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const PORT: u16 = 7010;
/// Each gateway learns the MAC address of a new neighbor separately.
const LEARNED: Duration = Duration::from_secs(8);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    for (name, vtep) in [("foreign-4", "192.0.2.40"), ("foreign-6", "2001:db8:0:1::40")] {
        let foreign = lab.add_foreign(name, vtep.parse()?, "web", "front").await?;
        let outcome = works(lab, &foreign).await;
        lab.remove_foreign(foreign).await?;
        outcome?;
    }
    Ok(())
}

async fn works(lab: &Lab, foreign: &Foreign) -> Outcome {
    let instance = &foreign.instance;
    let own: Vec<IpAddr> =
        instance.ipv4.map(IpAddr::from).into_iter().chain(instance.ipv6.map(IpAddr::from)).collect();
    ensure!(own.len() == 2, "the foreign instance has not both families: {instance:?}");
    eventually(LEARNED, async || {
        for attempt in 0..4 {
            for address in lab.vm("web-1")?.addresses() {
                let size = (56 + attempt).to_string();
                let ping = ping(lab, &foreign.name, address, &["-c", "1", "-s", &size, "-W", "1"]).await?;
                ensure!(ping.received == 1, "{} -> web-1: {}", foreign.name, ping.text);
            }
        }
        Ok(())
    })
    .await?;
    // The same VPC on both kinds of underlay, and the peered VPC.
    for vm in ["web-1", "web-3", "db-1", "db-2"] {
        for address in lab.vm(vm)?.addresses() {
            eventually(LEARNED, || answers(lab, &foreign.name, address, &[])).await?;
        }
        for address in &own {
            eventually(LEARNED, || answers(lab, vm, *address, &[])).await?;
        }
    }
    for address in own {
        let at = SocketAddr::new(address, PORT);
        let _listener = Probe::listening(lab, &foreign.name, &["echo", &at.to_string(), "foreign"]).await?;
        let name = who(lab, "db-2", "tcp", at).await?;
        ensure!(name.as_deref() == Some("foreign"), "TCP from db-2 to {at}: {name:?} answered");
    }
    Ok(())
}
