//! A gateway whose table memory is nearly full stops telling elephants from mice, and
//! offloads every flow, so that it has less to do; it tells them again when there is
//! room. In between all stays as it was.

use crate::Ground;
use crate::support::{Failure, Outcome, Probe, address, ensure, eventually, path_to};
use sluice_client::{Gateway, NewInstance, NewSubnet, NewVpc, Subnet, Vpc};
use sluice_lab::{Lab, Options};
use sluice_types::{SubnetId, VpcId};
use std::net::SocketAddr;
use std::time::Duration;

const GATEWAYS: [&str; 2] = ["gw-a", "gw-b"];
/// Of table memory, so that few instances fill it.
const MIB: u32 = 1;
const PORT: u16 = 7041;
/// A mouse: a hundredth of what an elephant is by default.
const PPS: u64 = 4;
const SECONDS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(15);
/// As many as make their table grow to half of the memory, the last time for which there is room.
const INSTANCES: usize = 4_600;
/// About what a network with a subnet takes of the memory.
const SHARE_EACH: f64 = 0.000_25;
/// As near as the share must come to what is wanted.
const NEAR: f64 = 0.004;

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    for gateway in &mut options.topology.gateways {
        gateway.table_memory_mib = Some(MIB);
    }
    let lab = Lab::up(options).await?;
    let mut filler = Filler::new(&lab).await?;
    ensure!(!goes_direct(&lab, "web-3").await?, "a mouse was offloaded");
    filler.fill(0.81).await?;
    offloads_all(&lab, true).await?;
    ensure!(goes_direct(&lab, "web-3").await?, "every flow is offloaded, but not this one");
    filler.fill(0.75).await?;
    // A look or two later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    offloads_all(&lab, true).await?;
    filler.fill(0.69).await?;
    offloads_all(&lab, false).await?;
    ensure!(!goes_direct(&lab, "db-1").await?, "there is room again, and a mouse was offloaded");
    Ok(())
}

/// Whether a mouse of web-1 gets a direct path.
async fn goes_direct(lab: &Lab, to: &str) -> Result<bool, Failure> {
    let (sender, there) = (lab.vm("web-1")?, address(lab.vm(to)?, false)?);
    let at = SocketAddr::new(there, PORT).to_string();
    let _echo = Probe::listening(lab, to, &["echo", &at, to]).await?;
    let stream = Probe::start(lab, "web-1", &["stream", &at, &PPS.to_string(), &SECONDS.to_string()])?;
    stream.result().await?;
    Ok(path_to(lab, &sender.host, sender.vni, there).await?.is_some())
}

/// Until metrics and the API say so of both gateways.
async fn offloads_all(lab: &Lab, wanted: bool) -> Outcome {
    eventually(PATIENCE, || async move {
        for name in GATEWAYS {
            let found = lab.metrics(name).await?.sum("sluice_offload_all", &[]);
            ensure!(found == f64::from(wanted), "{name} offloads every flow: {found}, wanted: {wanted}");
            let id = lab.api().find::<Gateway>(name, &[]).await?.id.to_string();
            let node = lab.api().nodes().await?.into_iter().find(|node| node.node == id);
            let told = node.is_some_and(|node| node.offload_all);
            ensure!(told == wanted, "the API says of {name}: {told}, wanted: {wanted}");
        }
        Ok(())
    })
    .await
}

/// Networks that fill the gateways' tables: one with instances that nobody plugs in, which takes most of the
/// memory at once, and many with a subnet each, by which the rest is taken little by little.
struct Filler<'a> {
    lab: &'a Lab,
    /// Whose tenant and cluster the networks get.
    like: Vpc,
    made: Vec<(VpcId, SubnetId)>,
    number: usize,
}

impl<'a> Filler<'a> {
    async fn new(lab: &'a Lab) -> Result<Self, Failure> {
        let like = lab.api().get::<Vpc>(lab.vpc("web")?.id).await?;
        let mut filler = Self { lab, like, made: Vec::new(), number: 0 };
        let (vpc, subnet) = filler.network().await?;
        let host = lab.node("host-b")?.id.parse()?;
        let new = (0..INSTANCES).map(|number| NewInstance {
            name: format!("filler-{number}"),
            subnet,
            host,
            mac: None,
            ipv4: None,
            ipv6: None,
        });
        lab.api().create_instances(vpc, &new.collect::<Vec<_>>()).await?;
        Ok(filler)
    }

    async fn network(&mut self) -> Result<(VpcId, SubnetId), Failure> {
        self.number += 1;
        let vpc = NewVpc {
            name: format!("filler-{}", self.number),
            tenant: self.like.tenant,
            cluster: Some(self.like.cluster),
            vni: None,
            mtu: None,
            offload_kbps: None,
        };
        let vpc = self.lab.api().create((), &vpc).await?.object.id;
        let (ipv4, ipv6) = (Some("10.200.0.0/16".parse()?), Some("fd00:200::/64".parse()?));
        let subnet = NewSubnet { name: "all".to_owned(), ipv4, ipv6, dns: Vec::new() };
        Ok((vpc, self.lab.api().create(vpc, &subnet).await?.object.id))
    }

    /// What a gateway says of its tables' memory, once it has all that there is.
    async fn share(&self, gateway: &str) -> Result<f64, Failure> {
        self.lab.synchronized(gateway, PATIENCE).await?;
        // It looks at them once a second.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        Ok(self.lab.metrics(gateway).await?.sum("sluice_gateway_load_ratio", &[("resource", "tables")]))
    }

    /// Makes or deletes networks until as large a part of the tables' memory is taken.
    async fn fill(&mut self, wanted: f64) -> Outcome {
        for _ in 0..5 {
            let missing = wanted - self.share(GATEWAYS[0]).await?;
            if missing.abs() < NEAR {
                break;
            }
            let networks = (missing.abs() / SHARE_EACH) as usize;
            for _ in 0..networks {
                if missing > 0.0 {
                    let made = self.network().await?;
                    self.made.push(made);
                } else if let Some((vpc, subnet)) = self.made.pop() {
                    self.lab.api().delete::<Subnet>(subnet, None).await?;
                    self.lab.api().delete::<Vpc>(vpc, None).await?;
                }
            }
        }
        for gateway in GATEWAYS {
            let share = self.share(gateway).await?;
            ensure!(
                (share - wanted).abs() < 2.0 * NEAR,
                "{gateway}'s tables are {share} full, wanted: {wanted}"
            );
        }
        Ok(())
    }
}
