//! Another instance of a VPC with many: from the call that creates it to the first answer that it gives to an instance on another host
//! (Achelous figure 10). It changes with how an instance becomes reachable.

use crate::agent::Agent;
use sluice_bench_report::Measure;
use sluice_bench_report::shell::{Failure, run};
use sluice_bench_spine::programming::{acknowledged, body, create, hosts};
use sluice_bench_spine::vswitch::namespace::Namespace;
use sluice_client::{Client, Instance, NewInstance};
use sluice_lab::{Lab, Options, Topology};
use sluice_types::{HostId, InstanceId, MacAddr, SubnetId, VpcId};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Instances of the VPC before another one is created.
pub const SIZES: [(u32, &str); 3] = [(10, "10"), (10_000, "10k"), (1_000_000, "1m")];
const PEER: &str = "preprogrammed";
const LAB: &str = "benchhosts";
/// The VM that sends, and the one whose instance is created.
const PROBE: (&str, Ipv4Addr) = ("probe", Ipv4Addr::new(10, 255, 0, 1));
const NEW: (&str, Ipv4Addr) = ("new", Ipv4Addr::new(10, 254, 0, 1));
const NEW_HOST: &str = "host-b";
/// The host's end of the new VM's interface, which agents may attach.
const PORT: &str = "x-new";
const UDP_PORT: u16 = 7000;
const INTERVAL: Duration = Duration::from_micros(200);
/// How often it is looked for datagrams: the kernel's own time-out has a resolution of some milliseconds.
const LOOK: Duration = Duration::from_micros(50);
/// Between two attempts to create an instance whose address is still held.
const CREATE_INTERVAL: Duration = Duration::from_micros(500);
/// An instance that does not answer within this time has failed. An address of an instance that was deleted can be used
/// as soon as all nodes have confirmed it.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `sluice` binary that the lab runs.
    pub binary: PathBuf,
    /// Instances that are created one after the other in each VPC.
    pub rounds: usize,
    /// Largest VPC.
    pub largest: u32,
}

/// Measures `program_one_ms_*`.
///
/// # Errors
/// Errors of the labs.
pub fn measure(settings: &Settings) -> Result<Vec<Measure>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ours = runtime.block_on(in_model(settings, None))?;
    let theirs = runtime.block_on(in_model(settings, Some(PEER)))?;
    let mut measures = Vec::new();
    for (((_, name), ours), theirs) in SIZES.iter().zip(&ours).zip(&theirs) {
        measures.push(Measure::apart(format!("program_one_ms_{name}"), "ms", ours, (PEER, theirs)));
    }
    Ok(measures)
}

/// Milliseconds of each round, for each size, under a model of the controller.
async fn in_model(settings: &Settings, model: Option<&str>) -> Result<Vec<Vec<f64>>, Failure> {
    let mut options = Options::standard(LAB, &settings.binary)?;
    options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lab.yaml"))?;
    options.model = model.map(str::to_owned);
    let outcome = match Lab::up(options).await {
        Ok(lab) => in_lab(settings, &lab, model).await,
        Err(error) => Err(error.into()),
    };
    sluice_lab::down(LAB).await?;
    outcome
}

async fn in_lab(settings: &Settings, lab: &Lab, model: Option<&str>) -> Result<Vec<Vec<f64>>, Failure> {
    let birth = Birth::prepare(lab)?;
    let hosts = hosts(lab).await?;
    // Under the other model, hosts have entries of all instances.
    let informed: &[&str] = if model.is_none() { &["gw-"] } else { &["gw-", "host-"] };
    let (mut there, mut all) = (0, Vec::new());
    for (size, name) in SIZES.into_iter().filter(|(size, _)| *size <= settings.largest) {
        let more = body(there..size, &birth.subnet.to_string(), &hosts);
        acknowledged(lab, informed, create(lab, birth.vpc, more).await?).await?;
        there = size;
        let mut rounds = Vec::new();
        for _ in 0..settings.rounds {
            rounds.push(birth.round(lab.api()).await?.as_secs_f64() * 1e3);
        }
        eprintln!("bench-hosts: {} of {name} instances: {rounds:.1?} ms", model.unwrap_or("zeta"));
        all.push(rounds);
    }
    Ok(all)
}

/// A VM that is ready before it has an instance, and one that sends to it.
struct Birth {
    vpc: VpcId,
    subnet: SubnetId,
    host: HostId,
    mac: MacAddr,
    agent: Agent,
    probe: Arc<UdpSocket>,
    echo: Arc<UdpSocket>,
}

impl Birth {
    fn prepare(lab: &Lab) -> Result<Self, Failure> {
        let vpc = lab.vpc("large")?;
        let mac = MacAddr::local(0xfe_0001);
        let namespace = |place: &str| lab.paths().namespace(place);
        let (new, host, probe) = (namespace(NEW.0), namespace(NEW_HOST), namespace(PROBE.0));
        let probe_mac = lab.vm(PROBE.0)?.mac;
        for line in [
            format!("ip netns add {new}"),
            format!("ip link add eth0 address {mac} netns {new} type veth peer name {PORT} netns {host}"),
            format!("ip netns exec {host} sysctl -qw net.ipv6.conf.{PORT}.disable_ipv6=1"),
            format!("ip -n {host} link set {PORT} up alias {}", NEW.0),
            format!("ip -n {new} link set lo up"),
            format!("ip -n {new} link set eth0 mtu 1400 up"),
            format!("ip -n {new} addr add {}/8 dev eth0", NEW.1),
            // What is measured is the network, not how soon a kernel repeats ARP.
            format!("ip -n {new} neigh replace {} lladdr {probe_mac} dev eth0 nud permanent", PROBE.1),
            format!("ip -n {probe} neigh replace {} lladdr {mac} dev eth0 nud permanent", NEW.1),
        ] {
            run(&line)?;
        }
        let socket = |place: &str, at: Ipv4Addr, to: Option<Ipv4Addr>| {
            Namespace::open(&lab.paths().namespace_file(place))?.within(|| {
                let socket = UdpSocket::bind(SocketAddrV4::new(at, UDP_PORT))?;
                to.map_or(Ok(()), |to| socket.connect(SocketAddrV4::new(to, UDP_PORT)))?;
                socket.set_nonblocking(true)?;
                Ok(Arc::new(socket))
            })
        };
        Ok(Self {
            vpc: vpc.id,
            subnet: *vpc.subnets.get("all").ok_or("the lab has no subnet `all`")?,
            host: lab.node(NEW_HOST)?.id.parse()?,
            mac,
            agent: Agent::of(lab, NEW_HOST)?,
            probe: socket(PROBE.0, PROBE.1, Some(NEW.1))?,
            echo: socket(NEW.0, NEW.1, None)?,
        })
    }

    /// Creates the instance, and removes it. Returns the time from the call to the first answer.
    async fn round(&self, api: &Client) -> Result<Duration, Failure> {
        let end = Arc::new(AtomicBool::new(false));
        let (probe, echo) = (self.probe.clone(), self.echo.clone());
        let ended = end.clone();
        let echoes = std::thread::spawn(move || answer(&echo, &ended));
        let ended = end.clone();
        let answered = std::thread::spawn(move || first_answer(&probe, &ended));
        let made = self.make(api).await;
        if made.is_err() {
            end.store(true, Ordering::Relaxed);
        }
        let answered = tokio::task::spawn_blocking(move || answered.join()).await?;
        end.store(true, Ordering::Relaxed);
        echoes.join().map_err(|_| "the new VM's thread panicked")??;
        let (begun, id) = made?;
        let answered = answered.map_err(|_| "the probe's thread panicked")??;
        api.delete::<Instance>(id, None).await?;
        Ok(answered.ok_or("the new instance gave no answer")?.saturating_duration_since(begun))
    }

    /// Creates the instance and attaches its port. Returns when the call began.
    async fn make(&self, api: &Client) -> Result<(Instant, InstanceId), Failure> {
        let new = NewInstance {
            name: NEW.0.to_owned(),
            subnet: self.subnet,
            host: self.host,
            mac: Some(self.mac),
            ipv4: Some(NEW.1),
            ipv6: None,
            security_groups: Some(Vec::new()),
            settings: Default::default(),
        };
        let patience = Instant::now() + PATIENCE / 2;
        let (begun, id) = loop {
            let begun = Instant::now();
            match api.create(self.vpc, &new).await {
                Ok(created) => break (begun, created.object.id),
                Err(error) if begun > patience => return Err(error.into()),
                // Its address is held until all nodes have confirmed that the previous one is deleted.
                Err(_) => tokio::time::sleep(CREATE_INTERVAL).await,
            }
        };
        self.agent.attach(PORT, id).await?;
        Ok((begun, id))
    }
}

/// Answers all datagrams until `end`.
fn answer(socket: &UdpSocket, end: &AtomicBool) -> Result<(), Failure> {
    let mut packet = [0; 16];
    while !end.load(Ordering::Relaxed) {
        if let Some((length, from)) = received(socket.recv_from(&mut packet))? {
            // The port may have been detached.
            let _ = socket.send_to(&packet[..length], from);
        } else {
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}

/// Sends a datagram in each interval. Returns when the first answer to one of them came, or `None`.
fn first_answer(socket: &UdpSocket, end: &AtomicBool) -> Result<Option<Instant>, Failure> {
    let until = Instant::now() + PATIENCE;
    let mut packet = [0; 16];
    // Answers to the previous round.
    while received(socket.recv(&mut packet))?.is_some() {}
    while Instant::now() < until && !end.load(Ordering::Relaxed) {
        // Nothing is there to receive it at first.
        let _ = socket.send(&[0; 8]);
        let next = Instant::now() + INTERVAL;
        while Instant::now() < next {
            if received(socket.recv(&mut packet))?.is_some() {
                return Ok(Some(Instant::now()));
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok(None)
}

/// What was received; `None` if nothing was within the interval, or an ICMP error.
fn received<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, TimedOut, WouldBlock};
    match result {
        Ok(received) => Ok(Some(received)),
        Err(error)
            if matches!(
                error.kind(),
                ConnectionRefused | HostUnreachable | Interrupted | TimedOut | WouldBlock
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
