//! A host may send only in the networks of its instances: what it sends in another network, with its own underlay
//! address or with that of another host that has no instance of the network either, is dropped by the gateways
//! and counted. After it gets an instance of the network its packets pass, and some time after the instance has
//! gone they are dropped again (only in `make soak`, because that time is 70 s).

use crate::Ground;
use crate::support::{Failure, Outcome, drops, ensure, eventually, execute, ping, soak};
use sluice_client::{Instance, NewInstance};
use sluice_lab::{Foreign, Lab};
use std::net::IpAddr;
use std::time::Duration;

const NAME: &str = "foreign-sender";
const VTEP: &str = "192.0.2.41";
/// A host without an instance of the network `db`.
const OTHER_VTEP: &str = "192.0.2.21";
const TARGET: &str = "db-1";
const OWN: &str = "10.2.0.41";
const PINGS: f64 = 3.0;
const COUNTED: Duration = Duration::from_secs(2);
/// Longer than gateways accept packets of a host after its last instance has gone, which is 70 s.
const LINGERED: Duration = Duration::from_secs(80);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let foreign = lab.add_foreign(NAME, VTEP.parse()?, "web", "front").await?;
    let outcome = check(lab, &foreign).await;
    lab.remove_foreign(foreign).await?;
    outcome
}

async fn check(lab: &Lab, foreign: &Foreign) -> Outcome {
    let (db, target) = (lab.vpc("db")?, lab.vm(TARGET)?);
    let address = target.addresses().into_iter().find(IpAddr::is_ipv4);
    let address = address.ok_or_else(|| Failure::new(format!("{TARGET} has no IPv4 address")))?;
    let instance = NewInstance {
        name: NAME.to_owned(),
        subnet: db.subnets["store"],
        host: foreign.host.id,
        mac: None,
        ipv4: Some(OWN.parse()?),
        ipv6: None,
        security_groups: Some(Vec::new()),
        settings: Default::default(),
    };
    for vtep in [VTEP, OTHER_VTEP] {
        send_as(lab, vtep, db.vni, &target.mac.to_string(), address).await?;
        refused(lab, db.vni, address).await?;
    }
    send_as(lab, VTEP, db.vni, &target.mac.to_string(), address).await?;
    let instance = lab.api().create(db.id, &instance).await?.object;
    let mac = instance.mac.to_string();
    execute(lab, NAME, &["ip", "link", "set", "vx1", "address", &mac]).await?;
    execute(
        lab,
        NAME,
        &["ip", "neigh", "replace", &address.to_string(), "lladdr", &target.mac.to_string(), "dev", "vx1"],
    )
    .await?;
    eventually(COUNTED, || async {
        let ping = ping(lab, NAME, address, &["-I", "vx1", "-c", "1", "-W", "1"]).await?;
        ensure!(ping.received == 1, "with an instance of the network: {}", ping.text);
        Ok(())
    })
    .await?;
    lab.api().delete::<Instance>(instance.id, None).await?;
    if soak().is_zero() {
        return Ok(());
    }
    tokio::time::sleep(LINGERED).await;
    refused(lab, db.vni, address).await
}

/// Gives the foreign host a VXLAN device in the network, with this underlay address. It does not answer ARP requests for
/// that address: gateways would send it the packets for the other host, also after this scenario.
async fn send_as(lab: &Lab, vtep: &str, vni: u32, mac: &str, target: IpAddr) -> Outcome {
    let vip = lab.state().topology.cluster.vips.iter().find(|vip| vip.is_ipv4());
    let vip = vip.ok_or_else(|| Failure::new("no IPv4 vIP"))?.to_string();
    let script = format!(
        "sysctl -qw net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.arp_ignore=1; ip link del vx1 2>/dev/null; ip addr replace {vtep}/32 dev lo\n\
         ip link add vx1 mtu 1400 type vxlan id {vni} local {vtep} remote {vip} dstport 4789 nolearning udp6zerocsumrx &&\n\
         ip link set vx1 up && ip addr add {OWN}/24 dev vx1 &&\n\
         ip neigh replace {target} lladdr {mac} dev vx1"
    );
    execute(lab, NAME, &["sh", "-c", &script]).await
}

/// Checks that packets are dropped for their sender and counted, in total on all gateways.
async fn refused(lab: &Lab, vni: u32, target: IpAddr) -> Outcome {
    let before = drops(lab, vni, "foreign_sender").await?;
    let ping = ping(lab, NAME, target, &["-I", "vx1", "-c", "3", "-i", "0.1", "-W", "1"]).await?;
    ensure!(ping.received == 0, "without an instance of the network: {}", ping.text);
    eventually(COUNTED, || async {
        let counted = drops(lab, vni, "foreign_sender").await? - before;
        ensure!(counted >= PINGS, "{counted} packets were counted as foreign_sender, of {PINGS}");
        Ok(())
    })
    .await
}
