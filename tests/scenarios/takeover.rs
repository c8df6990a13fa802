//! Gateways of a cluster of three die, or hear no more, under traffic of a packet
//! every two milliseconds: their vIPs go to the others, and come back when they
//! do. What it costs is measured and printed.
//!
//! Packets are lost until the failure is found, for a third of a second at the
//! hello interval of these labs (`support::unhurried`), and none when vIPs go home.
//! They come through again while the gateway is away, or the scenario fails. How fast it is at the usual interval
//! says `make bench-cluster`. Takeovers that lose nothing: `lossless_takeover`.

use crate::Ground;
use crate::support::{Failure, Outcome, PATIENT, Probe, address, ensure, eventually, number, unhurried};
use futures::future::try_join_all;
use serde_json::{Value, json};
use sluice_client::{Cluster, Gateway, Vpc};
use sluice_lab::{CONTROLLER, Lab, Options};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const PORT: u16 = 7021;
const PPS: u64 = 500;
const SECONDS: u64 = 5;
/// Of those under which a gateway fails: to be over at the end although the machine is not run for moments.
const FAILING_SECONDS: u64 = 10;
/// Before something fails, traffic flows for so long.
pub const CALM: Duration = Duration::from_millis(1_200);
/// Hold-downs double while one gateway fails again and again.
pub const HOME: Duration = Duration::from_secs(40);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None).await?;
    let bench = Bench::new(&lab).await?;
    bench.at_home().await?;
    bench.gateway_dies("a gateway dies", false).await?;
    bench.gateway_goes_deaf().await?;
    bench.gateway_dies("a gateway dies while the controller is down", true).await
}

/// The standard lab with one more gateway, and two vIPs for each; `model`: another than the usual one.
pub async fn lab_of_three(ground: &Ground, model: Option<&str>) -> Result<Lab, Failure> {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    options.model = model.map(str::to_owned);
    let topology = &mut options.topology;
    let mut third = topology.gateways[1].clone();
    third.name = "gw-c".to_owned();
    (third.ipv4, third.ipv6) = ("192.0.2.13".parse().ok(), "2001:db8:0:1::13".parse().ok());
    topology.gateways.push(third);
    topology.cluster.vips = ["192.0.2.", "2001:db8:0:1::"]
        .iter()
        .flat_map(|prefix| (101..=103).map(move |last| format!("{prefix}{last}").parse()))
        .collect::<Result<Vec<IpAddr>, _>>()?;
    unhurried(topology);
    Ok(Lab::up(options).await?)
}

/// Traffic through both underlays in both families, and who fails under it.
pub struct Bench<'a> {
    pub lab: &'a Lab,
    _listeners: Vec<Probe>,
    ways: Vec<(&'static str, String)>,
    /// Who failed already: a gateway that seemed dead lately and was not is given longer.
    tried: RefCell<BTreeSet<String>>,
}

/// What a stream of packets saw.
#[derive(Default)]
pub struct Seen {
    pub lost: u64,
    pub longest_ms: f64,
}

impl<'a> Bench<'a> {
    pub async fn new(lab: &'a Lab) -> Result<Self, Failure> {
        // Through gateways all the time, however much it is.
        for vpc in ["web", "db"] {
            let vpc = lab.vpc(vpc)?;
            lab.api().update::<Vpc>(vpc.id, &json!({ "offload_kbps": u32::MAX }), None).await?;
        }
        let mut listeners = Vec::new();
        let mut ways = Vec::new();
        for (from, to, ipv6) in [("web-1", "web-3", false), ("web-3", "web-1", true), ("db-1", "db-2", false)]
        {
            let at = SocketAddr::new(address(lab.vm(to)?, ipv6)?, PORT).to_string();
            listeners.push(Probe::listening(lab, to, &["echo", &at, to]).await?);
            ways.push((from, at));
        }
        let bench = Self { lab, _listeners: listeners, ways, tried: RefCell::default() };
        // A switch that floods what it does not know would hide failures: any gateway forwards it.
        for place in 0..lab.state().topology.gateways.len() {
            bench.set_port(&format!("p{place}"), &["flood"], "off").await?;
        }
        Ok(bench)
    }

    pub fn streams(&self) -> Result<Vec<Probe>, Failure> {
        self.streams_for(SECONDS)
    }

    /// Begins to send, for so many seconds.
    pub fn streams_for(&self, seconds: u64) -> Result<Vec<Probe>, Failure> {
        let (pps, seconds) = (PPS.to_string(), seconds.to_string());
        let start =
            |(from, at): &(&str, String)| Probe::start(self.lab, from, &["stream", at, &pps, &seconds]);
        self.ways.iter().map(start).collect()
    }

    /// Ends the streams: what the worst of them saw.
    pub async fn worst(&self, what: &str, streams: Vec<Probe>) -> Result<Seen, Failure> {
        let mut worst = Seen::default();
        for stream in streams {
            let result: Value = stream.result().await?;
            let sent = number(&result, "sent")?;
            ensure!(sent >= PPS, "{what}: only {sent} packets were sent");
            worst.lost = worst.lost.max(sent - number(&result, "received")?);
            for range in result["lost"].as_array().into_iter().flatten() {
                let [first, last] = [0, 1].map(|at| range[at].as_u64().unwrap_or_default());
                worst.longest_ms = worst.longest_ms.max((last - first + 1) as f64 * 1e3 / PPS as f64);
            }
            // The last packets came back: whatever happened is over.
            let tail =
                result["lost"].as_array().and_then(|lost| lost.last()).and_then(|last| last[1].as_u64());
            ensure!(
                tail.is_none_or(|last| last + PPS / 10 < sent),
                "{what}: nothing came back at the end: {result}"
            );
        }
        println!("    {what}: at most {} packets lost, {:.1} ms in a row", worst.lost, worst.longest_ms);
        Ok(worst)
    }

    /// The gateway that forwards most of what the streams send, of those that have not failed since all
    /// have, and its port on the switch.
    pub async fn busiest(&self) -> Result<(String, String), Failure> {
        let before = self.forwarded().await?;
        tokio::time::sleep(Duration::from_millis(400)).await;
        let after = self.forwarded().await?;
        let gateways = &self.lab.state().topology.gateways;
        let mut tried = self.tried.borrow_mut();
        if tried.len() == gateways.len() {
            tried.clear();
        }
        let fresh = after.iter().filter(|(name, _)| !tried.contains(*name));
        let busiest = fresh.max_by_key(|(name, count)| *count - before.get(*name).unwrap_or(&0));
        let (name, _) = busiest.ok_or_else(|| Failure::new("the lab has no gateway"))?;
        tried.insert(name.clone());
        let place = gateways.iter().position(|it| it.name == *name).unwrap_or(0);
        Ok((name.clone(), format!("p{place}")))
    }

    async fn forwarded(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let mut counts = BTreeMap::new();
        for gateway in &self.lab.state().topology.gateways {
            let metrics = self.lab.metrics(&gateway.name).await?;
            counts.insert(gateway.name.clone(), metrics.sum("sluice_vni_packets_total", &[]) as u64);
        }
        Ok(counts)
    }

    /// Who owns each vIP, and whose it is, by the API.
    async fn owners(&self) -> Result<BTreeMap<IpAddr, (String, String)>, Failure> {
        let name = &self.lab.state().topology.cluster.name;
        let cluster = self.lab.api().find::<Cluster>(name, &[]).await?;
        let gateways = self.lab.api().list::<Gateway>(&[], None).await?;
        let named = |id: Option<sluice_types::GatewayId>| {
            let gateway = id.and_then(|id| gateways.iter().find(|gateway| gateway.id == id));
            gateway.map_or_else(|| "nobody".to_owned(), |gateway| gateway.name.clone())
        };
        Ok(cluster.vips.iter().map(|vip| (vip.address, (named(vip.owner), named(vip.home)))).collect())
    }

    pub async fn at_home(&self) -> Outcome {
        eventually(HOME, || async {
            let owners = self.owners().await?;
            let away: Vec<_> = owners.iter().filter(|(_, (owner, home))| owner != home).collect();
            ensure!(away.is_empty() && !owners.is_empty(), "away from home: {away:?}");
            Ok(())
        })
        .await
    }

    pub async fn owns_nothing(&self, victim: &str) -> Outcome {
        eventually(HOME, || async {
            let owners = self.owners().await?;
            let owning: BTreeSet<_> = owners.values().map(|(owner, _)| owner.as_str()).collect();
            ensure!(!owning.contains(victim) && !owning.contains("nobody"), "{owners:?}");
            Ok(())
        })
        .await
    }

    /// vIPs go home, and nothing is lost on the way.
    pub async fn returns(&self, what: &str, victim: &str) -> Outcome {
        let begin = Instant::now();
        let mut lost = 0;
        loop {
            let seen = self.worst(&format!("{what}: {victim} comes back"), self.streams()?).await?;
            lost += seen.lost;
            let owners = self.owners().await?;
            if owners.values().all(|(owner, home)| owner == home) {
                break;
            }
            ensure!(begin.elapsed() < PATIENT * HOME, "{what}: vIPs did not go home: {owners:?}");
        }
        ensure!(lost == 0, "{what}: {lost} packets lost while vIPs went home to {victim}");
        Ok(())
    }

    /// Runs a command on the switch.
    pub async fn on_switch(&self, argv: &[&str]) -> Outcome {
        let switch = self.lab.state().topology.switches[0].name.clone();
        let output = self.lab.exec(&switch, argv).await?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{argv:?} on {switch}: {error}");
        Ok(())
    }

    /// The machine dies, as far as the network can tell: agent and link at once.
    async fn gateway_dies(&self, what: &str, without_controller: bool) -> Outcome {
        if without_controller {
            self.lab.kill(CONTROLLER).await?;
        }
        let streams = self.streams_for(FAILING_SECONDS)?;
        tokio::time::sleep(CALM).await;
        let (victim, port) = self.busiest().await?;
        self.on_switch(&["ip", "link", "set", &port, "down"]).await?;
        self.lab.kill(&victim).await?;
        let seen = self.worst(what, streams).await?;
        ensure!(seen.lost > 0, "{what}: {victim} forwarded nothing, and its death shows nothing");
        if without_controller {
            self.lab.restart(CONTROLLER)?;
            self.lab.api().wait_ready(HOME).await?;
        }
        self.owns_nothing(&victim).await?;
        self.on_switch(&["ip", "link", "set", &port, "up"]).await?;
        self.nobody_is_misled(what, &victim).await?;
        self.lab.restart(&victim)?;
        self.returns(what, &victim).await
    }

    /// A gateway's link is back and its agent is not: its programs have lost their neighbours. When somebody
    /// asks everybody for vIPs, no switch takes it from their answer that the vIPs are there.
    async fn nobody_is_misled(&self, what: &str, victim: &str) -> Outcome {
        let streams = self.streams()?;
        let topology = &self.lab.state().topology;
        // The kernels of the other gateways know no vIP, not even those that their programs answer for.
        let others = topology.gateways.iter().filter(|gateway| gateway.name != victim);
        let asked = others.flat_map(|gateway| topology.cluster.vips.iter().map(move |vip| (gateway, vip)));
        try_join_all(asked.map(async |(gateway, vip)| {
            let vip = vip.to_string();
            // Not if it was asked before. That there is no such neighbour is no failure.
            self.lab.exec(&gateway.name, &["ip", "neigh", "del", &vip, "dev", "eth0"]).await?;
            let output = self.lab.exec(&gateway.name, &["ping", "-c", "1", "-W", "1", &vip]).await?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(
                said.contains("1 packets transmitted"),
                "{} asked nobody for {vip}: {said}",
                gateway.name
            );
            Ok::<_, Failure>(())
        }))
        .await?;
        let seen = self.worst(&format!("{what}: its link is back"), streams).await?;
        ensure!(seen.lost == 0, "{what}: {} packets lost when {victim}'s link came back", seen.lost);
        Ok(())
    }

    /// The link fails in one direction: the gateway can speak, and hears nothing.
    async fn gateway_goes_deaf(&self) -> Outcome {
        let what = "a link fails in one direction";
        let ports: Vec<String> =
            (0..self.lab.state().topology.gateways.len()).map(|at| format!("p{at}")).collect();
        // A switch that floods what it does not know hides the failure: all gateways forward it.
        for port in &ports {
            self.set_port(port, &["flood"], "off").await?;
        }
        let streams = self.streams_for(FAILING_SECONDS)?;
        tokio::time::sleep(CALM).await;
        let (victim, port) = self.busiest().await?;
        // The switch takes what the gateway sends, learns nothing from it, and so sends nothing there.
        let deaf = ["learning", "mcast_flood", "bcast_flood"];
        self.set_port(&port, &deaf, "off").await?;
        self.on_switch(&["bridge", "fdb", "flush", "dev", "br0", "brport", &port]).await?;
        let seen = self.worst(what, streams).await?;
        ensure!(seen.lost > 0, "{what}: {victim} forwarded nothing, and its deafness shows nothing");
        self.owns_nothing(&victim).await?;
        // One that was stopped itself listens for a while before it says so.
        eventually(HOME, || async {
            let state = self.gateway(&victim).await?.state;
            ensure!(state == "cut_off", "{what}: {victim} is {state}");
            Ok(())
        })
        .await?;
        self.set_port(&port, &deaf, "on").await?;
        self.returns(what, &victim).await
    }

    async fn set_port(&self, port: &str, flags: &[&str], on: &str) -> Outcome {
        for flag in flags {
            self.on_switch(&["bridge", "link", "set", "dev", port, flag, on]).await?;
        }
        Ok(())
    }

    pub async fn gateway(&self, name: &str) -> Result<Gateway, Failure> {
        Ok(self.lab.api().find::<Gateway>(name, &[]).await?)
    }
}
