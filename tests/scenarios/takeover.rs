//! Gateways of a cluster of three fail, or receive nothing any more, under traffic of a packet every two
//! milliseconds: their vIPs move to the others, and return when they do.
//!
//! Loss lasts until the failure is detected and the vIP announced. `docs/decisions/takeover.md` states the bound
//! in hello intervals; it is checked at 100 ms (`support::slow_hellos`), and by the scenario `takeover_default`
//! at the default of 4 ms. Nothing is lost when vIPs return. Takeovers that lose nothing: `lossless_takeover`.
//!
//! Catches: a gateway that detects failures late or not at all, announcements that switches do not see, vIPs
//! that return before their gateway forwards, a dead controller that delays takeovers.

use crate::Ground;
use crate::streams::{Account, Streams, lossless};
use crate::support::{
    Failure, Outcome, Probe, address, ensure, ensure_timely, eventually, execute, number, slow_hellos,
};
use futures::future::try_join_all;
use serde_json::{Value, json};
use sluice_client::{Cluster, Gateway, Vpc};
use sluice_lab::{CONTROLLER, Lab, Options, Topology};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const PORT: u16 = 7021;
const PPS: u64 = 500;
/// Duration of a stream under which a gateway fails: traffic before the failure, the takeover, and an end
/// in which packets must arrive again.
const SECONDS: u64 = 4;
/// Duration of the traffic before something fails.
pub const STEADY: Duration = Duration::from_millis(1_200);
/// The time in which the packets of each gateway are counted.
const COUNTED: Duration = Duration::from_millis(400);
/// A gateway that forwards fewer packets in that time has no stream.
const STREAM_PACKETS_MIN: u64 = PPS / 10;
/// How often streams are started until a gateway that has not failed yet forwards one. It forwards none of the six
/// directions of the first three streams in one case of eleven, and none of five times as many in one of 190,000.
const STARTS_MAX: usize = 5;
/// vIPs return two seconds after their gateway did, one every quarter of a second; hold-downs double while the
/// same gateway fails again and again.
pub const RETURN_MAX: Duration = Duration::from_secs(30);
/// Limit of the time from the failure to the first packet through another gateway: 3.75 hello intervals of
/// 100 ms, and 50 ms for the announcement, the switch, and a probe that sends every 2 ms.
pub const TAKEOVER_MAX: Duration = Duration::from_millis(425);
/// If the gateway still sends, its peers learn from its hellos that it receives nothing: 4.25 intervals.
const DEAF_TAKEOVER_MAX: Duration = Duration::from_millis(475);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    bench.gateway_dies("a gateway dies", false, TAKEOVER_MAX).await?;
    bench.gateway_dies("a gateway dies while the controller is down", true, TAKEOVER_MAX).await?;
    // The last part: the deaf gateway wrongly believes its peers dead, and waits twice as long for them for 10 s.
    bench.gateway_goes_deaf().await
}

/// The hello interval of a lab.
#[derive(Clone, Copy, PartialEq)]
pub enum Hellos {
    /// 4 ms.
    Default,
    /// 100 ms.
    Slow,
}

/// The standard lab with a third gateway, and two vIPs for each gateway. `model` selects another model than
/// Zeta.
pub async fn lab_of_three(ground: &Ground, model: Option<&str>, hellos: Hellos) -> Result<Lab, Failure> {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    options.model = model.map(str::to_owned);
    three_gateways(&mut options.topology, hellos)?;
    Ok(Lab::up(options).await?)
}

/// Adds a third gateway, and vIPs until there are two for each gateway.
pub fn three_gateways(topology: &mut Topology, hellos: Hellos) -> Outcome {
    let mut third = topology.gateways[1].clone();
    third.name = "gw-c".to_owned();
    (third.ipv4, third.ipv6) = ("192.0.2.13".parse().ok(), "2001:db8:0:1::13".parse().ok());
    topology.gateways.push(third);
    topology.cluster.vips = ["192.0.2.", "2001:db8:0:1::"]
        .iter()
        .flat_map(|prefix| (101..=103).map(move |last| format!("{prefix}{last}").parse()))
        .collect::<Result<Vec<IpAddr>, _>>()?;
    if hellos == Hellos::Slow {
        slow_hellos(topology);
    }
    Ok(())
}

/// Traffic through both underlays in both families, and the gateways that fail under it.
pub struct Bench<'a> {
    pub lab: &'a Lab,
    _listeners: Vec<Probe>,
    /// Sending VM and destination of each stream.
    flows: Vec<(&'static str, String)>,
    /// Gateways that failed already: peers wait longer for a gateway that they wrongly believed dead.
    failed: RefCell<BTreeSet<String>>,
}

/// Streams in progress.
pub struct Running {
    account: Account,
    probes: Vec<Probe>,
}

/// Result of the stream with the longest outage.
#[derive(Default)]
pub struct Loss {
    pub packets: u64,
    pub longest: Duration,
}

impl<'a> Bench<'a> {
    pub async fn new(lab: &'a Lab) -> Result<Self, Failure> {
        // The traffic stays on gateways, whatever its rate.
        for vpc in ["web", "db"] {
            let vpc = lab.vpc(vpc)?;
            lab.api().update::<Vpc>(vpc.id, &json!({ "offload_kbps": u32::MAX }), None).await?;
        }
        let mut listeners = Vec::new();
        let mut flows = Vec::new();
        for (from, to, ipv6) in [("web-1", "web-3", false), ("web-3", "web-1", true), ("db-1", "db-2", false)]
        {
            let at = SocketAddr::new(address(lab.vm(to)?, ipv6)?, PORT).to_string();
            listeners.push(Probe::listening(lab, to, &["echo", &at, to]).await?);
            flows.push((from, at));
        }
        let bench = Self { lab, _listeners: listeners, flows, failed: RefCell::default() };
        // A switch that floods frames with unknown destinations would hide failures, because any gateway
        // forwards them.
        for place in 0..lab.state().topology.gateways.len() {
            bench.set_port(&format!("p{place}"), &["flood"], "off").await?;
        }
        Ok(bench)
    }

    pub async fn streams(&self) -> Result<Running, Failure> {
        self.streams_for(SECONDS).await
    }

    /// Starts to send, for this many seconds.
    pub async fn streams_for(&self, seconds: u64) -> Result<Running, Failure> {
        Ok(Running { account: Account::begin(self.lab).await?, probes: self.probes(seconds)? })
    }

    /// Starts a stream for each flow.
    fn probes(&self, seconds: u64) -> Result<Vec<Probe>, Failure> {
        let (pps, seconds) = (PPS.to_string(), seconds.to_string());
        let start =
            |(from, at): &(&str, String)| Probe::start(self.lab, from, &["stream", at, &pps, &seconds]);
        self.flows.iter().map(start).collect()
    }

    /// Starts streams, of which at least one goes through a gateway that has not failed yet. Returns them, the
    /// gateway, and its port on the switch. The vIP of a stream depends on its source port, so more streams are
    /// started if the first ones all go through other gateways.
    pub async fn streams_to_interrupt(&self) -> Result<(Running, String, String), Failure> {
        let mut streams = self.streams().await?;
        tokio::time::sleep(STEADY).await;
        for _ in 0..STARTS_MAX {
            if let Some((victim, port)) = self.busiest().await? {
                return Ok((streams, victim, port));
            }
            streams.probes.extend(self.probes(SECONDS)?);
        }
        Err(Failure::new("no stream goes through a gateway that has not failed yet"))
    }

    /// Starts to send until [`Streams::end`].
    pub async fn streams_until_ended(&self) -> Result<Streams<'a>, Failure> {
        Streams::to_flows(self.lab, &self.flows, PPS).await
    }

    /// Waits for the end of streams that must be complete.
    pub async fn lossless(&self, what: &str, streams: Running) -> Outcome {
        for (probe, (from, at)) in streams.probes.into_iter().zip(self.flows.iter().cycle()) {
            let result = probe.result().await?;
            let stream = format!("{what}: {from} -> {at}");
            ensure!(number(&result, "sent")? >= PPS, "{stream}: hardly any packets were sent: {result}");
            lossless(self.lab, &streams.account, &stream, &result).await?;
        }
        println!("    {what}: no packet lost");
        Ok(())
    }

    /// Waits for the end of streams under which a gateway failed: every stream carries packets again within
    /// `longest_max`, and at least one went through that gateway.
    pub async fn bounded_loss(&self, what: &str, streams: Running, longest_max: Duration) -> Outcome {
        let mut worst = Loss::default();
        for probe in streams.probes {
            let result: Value = probe.result().await?;
            let (sent, received) = (number(&result, "sent")?, number(&result, "received")?);
            ensure!(sent >= PPS, "{what}: only {sent} packets were sent");
            worst.packets = worst.packets.max(sent - received);
            let ranges = result["lost"].as_array().cloned().unwrap_or_default();
            for range in &ranges {
                let [first, last] = [0, 1].map(|at| range[at].as_u64().unwrap_or_default());
                let longest = Duration::from_millis((last - first + 1) * 1_000 / PPS);
                worst.longest = worst.longest.max(longest);
                // The last packets arrived: the takeover is over.
                ensure_timely!(last + PPS / 10 < sent, "{what}: nothing arrived at the end: {result}");
            }
        }
        println!("    {what}: at most {} packets lost, for {:?}", worst.packets, worst.longest);
        ensure!(worst.packets > 0, "{what}: no packet was lost, so nothing failed");
        ensure_timely!(
            worst.longest <= longest_max,
            "{what}: an outage of {:?}, bound {longest_max:?}",
            worst.longest
        );
        let packets_max = longest_max.as_millis() as u64 * PPS / 1_000;
        ensure_timely!(
            worst.packets <= packets_max,
            "{what}: {} packets lost, bound {packets_max}",
            worst.packets
        );
        Ok(())
    }

    /// The gateway that forwards most packets of the streams, and its port on the switch; no gateway that has failed
    /// before, unless all have. `None` if those that have not failed forward no stream.
    async fn busiest(&self) -> Result<Option<(String, String)>, Failure> {
        let before = self.forwarded().await?;
        tokio::time::sleep(COUNTED).await;
        let after = self.forwarded().await?;
        let gateways = &self.lab.state().topology.gateways;
        let mut failed = self.failed.borrow_mut();
        if failed.len() == gateways.len() {
            failed.clear();
        }
        let packets = after.iter().map(|(name, count)| (count - before.get(name).unwrap_or(&0), name));
        let fresh =
            packets.filter(|(packets, name)| *packets >= STREAM_PACKETS_MIN && !failed.contains(*name));
        let Some((_, name)) = fresh.max() else { return Ok(None) };
        let place = gateways.iter().position(|it| it.name == *name).unwrap_or(0);
        failed.insert(name.clone());
        Ok(Some((name.clone(), format!("p{place}"))))
    }

    async fn forwarded(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let mut counts = BTreeMap::new();
        for gateway in &self.lab.state().topology.gateways {
            let metrics = self.lab.metrics(&gateway.name).await?;
            counts.insert(gateway.name.clone(), metrics.sum("sluice_vni_packets_total", &[]) as u64);
        }
        Ok(counts)
    }

    /// Owner and preferred owner of each vIP, from the API.
    async fn owners(&self) -> Result<BTreeMap<IpAddr, (String, String)>, Failure> {
        let name = &self.lab.state().topology.cluster.name;
        let cluster = self.lab.api().find::<Cluster>(name, &[]).await?;
        let gateways = self.lab.api().list::<Gateway>(&[], None).await?;
        let named = |id: Option<sluice_types::GatewayId>| {
            let gateway = id.and_then(|id| gateways.iter().find(|gateway| gateway.id == id));
            gateway.map_or_else(|| "no gateway".to_owned(), |gateway| gateway.name.clone())
        };
        Ok(cluster
            .vips
            .iter()
            .map(|vip| (vip.address, (named(vip.owner), named(vip.preferred_owner))))
            .collect())
    }

    /// Waits until every vIP is owned by its preferred owner.
    pub async fn owners_preferred(&self) -> Outcome {
        eventually(RETURN_MAX, || async {
            let owners = self.owners().await?;
            let away: Vec<_> = owners.iter().filter(|(_, (owner, preferred))| owner != preferred).collect();
            ensure!(
                away.is_empty() && !owners.is_empty(),
                "vIPs with another owner than preferred: {away:?}"
            );
            Ok(())
        })
        .await
    }

    /// Waits until a gateway owns no vIP, and every vIP has an owner.
    pub async fn owns_nothing(&self, victim: &str) -> Outcome {
        eventually(RETURN_MAX, || async {
            let owners = self.owners().await?;
            let owning: BTreeSet<_> = owners.values().map(|(owner, _)| owner.as_str()).collect();
            ensure!(!owning.contains(victim) && !owning.contains("no gateway"), "{owners:?}");
            Ok(())
        })
        .await
    }

    /// vIPs return to their preferred owners, and no packet is lost meanwhile.
    pub async fn returns(&self, what: &str, victim: &str) -> Outcome {
        let begin = Instant::now();
        let streams = self.streams_until_ended().await?;
        self.owners_preferred().await?;
        println!("    {what}: vIPs returned to {victim} within {:.1} s", begin.elapsed().as_secs_f64());
        streams.end().await
    }

    /// Runs a command on the switch.
    pub async fn on_switch(&self, argv: &[&str]) -> Outcome {
        let switch = self.lab.state().topology.switches[0].name.clone();
        execute(self.lab, &switch, argv).await
    }

    /// The machine fails, as far as the network can see: agent and link at once.
    pub async fn gateway_dies(
        &self,
        what: &str,
        without_controller: bool,
        takeover_max: Duration,
    ) -> Outcome {
        if without_controller {
            self.lab.kill(CONTROLLER).await?;
        }
        let (streams, victim, port) = self.streams_to_interrupt().await?;
        self.on_switch(&["ip", "link", "set", &port, "down"]).await?;
        self.lab.kill(&victim).await?;
        self.bounded_loss(what, streams, takeover_max).await?;
        if without_controller {
            self.lab.restart(CONTROLLER)?;
            self.lab.api().wait_ready(RETURN_MAX).await?;
        }
        self.owns_nothing(&victim).await?;
        self.on_switch(&["ip", "link", "set", &port, "up"]).await?;
        self.dead_agent_attracts_no_packets(what, &victim).await?;
        self.lab.restart(&victim)?;
        self.returns(what, &victim).await
    }

    /// A gateway's link is back and its agent is not. Its programs have lost their neighbor entries, so they must
    /// not answer requests for vIPs, from which switches would learn that the vIPs are there.
    async fn dead_agent_attracts_no_packets(&self, what: &str, victim: &str) -> Outcome {
        let streams = self.streams_until_ended().await?;
        let topology = &self.lab.state().topology;
        // The kernels of the other gateways have no vIP, not even those that their programs answer for.
        let others = topology.gateways.iter().filter(|gateway| gateway.name != victim);
        let asked = others.flat_map(|gateway| topology.cluster.vips.iter().map(move |vip| (gateway, vip)));
        try_join_all(asked.map(async |(gateway, vip)| {
            let vip = vip.to_string();
            // A request is sent only if there is no entry. It is no failure if there was none to delete.
            self.lab.exec(&gateway.name, &["ip", "neigh", "del", &vip, "dev", "eth0"]).await?;
            let output = self.lab.exec(&gateway.name, &["ping", "-c", "1", "-W", "1", &vip]).await?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            ensure!(
                said.contains("1 packets transmitted"),
                "{} requested {vip} from no gateway: {said}",
                gateway.name
            );
            Ok::<_, Failure>(())
        }))
        .await?;
        streams.end().await?;
        println!("    {what}: the link of {victim} comes back: no packet lost");
        Ok(())
    }

    /// The link fails in one direction: the gateway can send, and receives nothing.
    async fn gateway_goes_deaf(&self) -> Outcome {
        let what = "a link fails in one direction";
        let (streams, victim, port) = self.streams_to_interrupt().await?;
        // The switch accepts the gateway's frames, but learns nothing from them and sends nothing there.
        let deaf = ["learning", "mcast_flood", "bcast_flood"];
        self.set_port(&port, &deaf, "off").await?;
        self.on_switch(&["bridge", "fdb", "flush", "dev", "br0", "brport", &port]).await?;
        self.bounded_loss(what, streams, DEAF_TAKEOVER_MAX).await?;
        self.owns_nothing(&victim).await?;
        // A gateway that was paused meanwhile listens for a while before it reports this state.
        eventually(RETURN_MAX, || async {
            let state = self.gateway(&victim).await?.state;
            ensure!(state == "isolated", "{what}: {victim} is {state}");
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
