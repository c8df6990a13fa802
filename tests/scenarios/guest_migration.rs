//! A guest of QEMU with security groups migrates by QEMU's own live migration, and back: connections in both directions
//! with VMs on its old host, on its new host and on a third one go on, of both families, and the time in which datagrams
//! are not answered is little longer than QEMU's own pause. Its first frame on the new host is QEMU's
//! announcement (RARP). Answers to pings are late afterwards; the guest's own part of that is measured at its tap, and what is left is
//! bounded. The source of the last migration is told when the guest is stopped, so that what comes during the pause waits in the tap of
//! the target. All of it goes on for a minute after the last migration, in which nothing is lost.
//!
//! Catches: what a namespace that changes its link (`migration`) does not do: a tap that QEMU holds before the guest runs,
//! frames that wait in the tap of the source, a guest whose clock stands still meanwhile.

use crate::Ground;
use crate::guest_delays::{GuestDelays, Request};
use crate::guests::{GUEST, told};
use crate::migration::{host_id, is_ready, metric};
use crate::security_groups::{create, group, permit_echo, set_groups};
use crate::streams::Streams;
use crate::support::{Failure, Outcome, PROBE, Probe, address, ensure, ensure_timely, number};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use sluice_client::{Instance, MigrationEnd, Remote, SessionMode};
use sluice_lab::{Guest, GuestMove, Lab, Options, Vm, VmState};
use sluice_types::{AddressFamily, IpNet, Protocol};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Child;
use tokio::task::JoinHandle;

const OLD: &str = "host-a";
const NEW: &str = "host-b";
/// On the old host, on the new one, and on a third one, which has an underlay of IPv6.
const PEERS: [&str; 3] = ["web-1", "web-3", THIRD];
const THIRD: &str = "neighbor";
/// The guest serves here; `keep` takes 8 ports.
const SERVED: u16 = 7601;
/// The guest echoes datagrams here.
const ECHO: u16 = 7620;
/// The peers serve here; `keep` takes 8 ports.
const OUTWARD: u16 = 7641;
/// The peer on the third host echoes the guest's datagrams here.
const OUTWARD_ECHO: u16 = 7660;
/// An emulated guest answers six streams of this rate, and has time left.
const PPS: u64 = 50;
/// Longer than a migration takes, in seconds.
const STREAM_MAX: u64 = 300;
const PING_INTERVAL: Duration = Duration::from_millis(50);
const MIGRATED: Duration = Duration::from_secs(20);
/// What a gap may have beyond the guest's pause: until the source has closed its port and the target has opened its own,
/// and until the guest, whose code the target translates for the first time, has answered.
const SWITCH_MAX: Duration = Duration::from_millis(200);
/// What an answer to a ping may take besides the guest's own part, after the guest has migrated.
const NETWORK_MAX: Duration = Duration::from_millis(100);
/// How long everything is watched after the last migration.
const WATCH: Duration = Duration::from_secs(60);
/// The part of the watch that is left out, because streams may send less than they claim.
const WATCH_MARGIN: Duration = Duration::from_secs(5);

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab(ground).await?;
    protect(&lab).await?;
    let _servers = serve(&lab).await?;
    let there = migrate(&lab, lab.vm(GUEST)?, (NEW, false), Duration::ZERO).await?;
    migrate(&lab, &there, (OLD, true), WATCH).await.map(drop)
}

async fn lab(ground: &Ground) -> Result<Lab, Failure> {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    for (name, host, guest) in [(THIRD, "host-c", Guest::Namespace), (GUEST, OLD, Guest::Qemu)] {
        options.topology.vms.push(Vm {
            name: name.to_owned(),
            vpc: "web".to_owned(),
            subnet: "front".to_owned(),
            host: host.to_owned(),
            ipv4: None,
            mac: None,
            security_groups: Vec::new(),
            guest,
            nics: Vec::new(),
        });
    }
    options.topology.guest_programs = vec![PROBE.into()];
    Ok(Lab::up(options).await?)
}

/// The guest's rules permit its services and pings from the peers, and theirs permit what the guest begins.
async fn protect(lab: &Lab) -> Outcome {
    let (server, client) = (group(lab, "server").await?, group(lab, "client").await?);
    for family in [AddressFamily::Ipv4, AddressFamily::Ipv6] {
        for (own, protocol, port, other) in [
            (server, Protocol::TCP, SERVED, client),
            (server, Protocol::UDP, ECHO, client),
            (client, Protocol::TCP, OUTWARD, server),
            (client, Protocol::UDP, OUTWARD_ECHO, server),
        ] {
            create(lab, own, family, protocol, port, Remote::Group(other)).await?;
        }
    }
    for name in PEERS {
        for at in lab.vm(name)?.addresses() {
            permit_echo(lab, server, Remote::Prefix(IpNet::from(at))).await?;
        }
        set_groups(lab, name, &[client]).await?;
    }
    set_groups(lab, GUEST, &[server]).await
}

/// Starts what answers, in the guest and at its peers.
async fn serve(lab: &Lab) -> Result<Vec<Probe>, Failure> {
    let mut script = Script::default();
    for (number, at) in lab.vm(GUEST)?.addresses().into_iter().enumerate() {
        script.start(&format!("keep{number}"), &format!("keep {}", SocketAddr::new(at, SERVED)));
        script.start(&format!("echo{number}"), &format!("echo {} {GUEST}", SocketAddr::new(at, ECHO)));
    }
    script.run(lab).await?;
    let mut servers = Vec::new();
    for name in PEERS {
        for at in lab.vm(name)?.addresses() {
            let keep = SocketAddr::new(at, OUTWARD).to_string();
            servers.push(Probe::listening(lab, name, &["keep", &keep]).await?);
            let echo = SocketAddr::new(at, OUTWARD_ECHO).to_string();
            servers.push(Probe::listening(lab, name, &["echo", &echo, name]).await?);
        }
    }
    Ok(servers)
}

/// Probes of the guest that no channel of the lab has: a migration closes all channels, and a command ends with its
/// channel. Their input is a FIFO, `/run/NAME.in`, and their output a file, `/run/NAME.out`.
#[derive(Default)]
struct Script(String);

impl Script {
    /// Adds a probe, which says when it is ready.
    fn start(&mut self, name: &str, words: &str) {
        self.begin(name, words);
        self.0.push_str(&format!("wait_for ready {name}\n"));
    }

    /// Adds a probe.
    fn begin(&mut self, name: &str, words: &str) {
        let files = format!("<>/run/{name}.in >/run/{name}.out 2>&1");
        // Those of the migration before have ended.
        self.0.push_str(&format!("rm -f /run/{name}.*\nmkfifo /run/{name}.in\n"));
        // The script may be at its end, which would end a probe that has no session of its own yet.
        self.0.push_str(&format!("setsid sh -c 'echo >/run/{name}.begun; exec {PROBE} {words}' {files} &\n"));
        self.0.push_str(&format!("until [ -e /run/{name}.begun ]; do sleep 0.1; done\n"));
    }

    /// Ends a probe, and prints what it has said.
    fn end(&mut self, names: &[String]) {
        // Opened to read as well: no other program reads it if the probe has failed.
        self.0.extend(names.iter().map(|name| format!("echo 1<>/run/{name}.in\n")));
        let result =
            |name: &String| format!("wait_for '{{' {name}\nprintf '%s ' {name}; tail -n 1 /run/{name}.out\n");
        self.0.extend(names.iter().map(result));
    }

    async fn run(self, lab: &Lab) -> Result<String, Failure> {
        const WAIT_FOR: &str = "wait_for() {\n\
            tries=0\n\
            until grep -q \"$1\" /run/$2.out; do\n\
            if [ $((tries += 1)) -gt 300 ]; then echo \"$2 said $(cat /run/$2.out)\" >&2; exit 1; fi\n\
            sleep 0.1\n\
            done\n\
            }\n";
        told(lab, &["sh", "-c", &format!("{WAIT_FOR}{}", self.0)]).await
    }
}

/// Pings from a peer, until they are ended.
struct Pings {
    what: String,
    /// The peer's address, and the guest's.
    ends: (IpAddr, IpAddr),
    child: Child,
    output: JoinHandle<std::io::Result<String>>,
}

/// What a peer has heard after the guest's pause.
struct Heard {
    what: String,
    ends: (IpAddr, IpAddr),
    /// The longest time between two answers, of which the second came after the pause.
    gap: Duration,
    /// The number of each request that was answered, and how long that took.
    answers: Vec<(u16, Duration)>,
}

impl Heard {
    /// The longest time that an answer took, and the longest one besides the guest's own part. Of requests that the guest has
    /// answered on its new host.
    fn longest(&self, own: &HashMap<Request, Duration>) -> Result<(Duration, Duration), Failure> {
        let parts: Vec<(Duration, Duration)> = self
            .answers
            .iter()
            .filter_map(|(number, total)| {
                let own = own.get(&(self.ends.0, self.ends.1, *number))?;
                Some((*total, total.saturating_sub(*own)))
            })
            .collect();
        ensure!(parts.len() > 10, "{}: only {} requests were seen at the tap", self.what, parts.len());
        let longest = |part: fn(&(Duration, Duration)) -> Duration| parts.iter().map(part).max();
        Ok((longest(|it| it.0).unwrap_or_default(), longest(|it| it.1).unwrap_or_default()))
    }
}

/// Number and time of the request that a line of `ping` is about.
fn answer(line: &str) -> Option<(u16, Duration)> {
    let word = |key: &'static str| line.split(' ').find_map(|word: &str| word.strip_prefix(key));
    // It counts further than the 16 bits that are sent.
    let number: u64 = word("icmp_seq=")?.parse().ok()?;
    let ms: f64 = word("time=")?.parse().ok()?;
    Some((number as u16, Duration::from_secs_f64(ms / 1000.0)))
}

impl Pings {
    fn start(lab: &Lab, from: &str, target: IpAddr) -> Result<Self, Failure> {
        let own = address(lab.vm(from)?, target.is_ipv6())?;
        let ends = (own, target);
        let (target, interval) = (target.to_string(), PING_INTERVAL.as_secs_f64().to_string());
        let argv = ["ping", "-n", "-D", "-i", &interval, &target];
        let mut child = lab.command(from, &argv)?.stdout(Stdio::piped()).spawn()?;
        let mut stdout = child.stdout.take().ok_or_else(|| Failure::new("ping has no output"))?;
        let output = tokio::spawn(async move {
            let mut text = String::new();
            stdout.read_to_string(&mut text).await.map(|_| text)
        });
        Ok(Self { what: format!("pings {from} -> {target}"), ends, child, output })
    }

    /// Ends them; returns what has come after `since`.
    async fn end(mut self, since: Duration) -> Result<Heard, Failure> {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        let pid = pid.ok_or_else(|| Failure::new(format!("{} have ended", self.what)))?;
        kill(Pid::from_raw(pid), Signal::SIGINT)?;
        self.child.wait().await?;
        let text = self.output.await??;
        let lines = text.lines().filter(|line| line.contains(" bytes from "));
        let answers = lines.clone().filter_map(answer).collect();
        let times = lines.filter_map(|line| line.strip_prefix('[')?.split(']').next()?.parse().ok());
        let times: Vec<f64> = times.collect();
        let after = times.windows(2).filter(|pair| pair[1] > since.as_secs_f64());
        let gaps: Vec<f64> = after.map(|pair| pair[1] - pair[0]).collect();
        ensure!(gaps.len() > 10, "{}: only {} answers after the pause: {text}", self.what, gaps.len());
        let gap = Duration::from_secs_f64(gaps.into_iter().fold(0.0, f64::max));
        Ok(Heard { what: self.what, ends: self.ends, gap, answers })
    }
}

/// Connections, streams and pings with all peers.
struct Traffic<'lab> {
    lab: &'lab Lab,
    streams: Streams<'lab>,
    talks: Vec<(String, Probe)>,
    pings: Vec<Pings>,
    /// Names of the guest's own connections and streams.
    own: Vec<String>,
}

impl<'lab> Traffic<'lab> {
    async fn begin(lab: &'lab Lab) -> Result<Self, Failure> {
        let addresses = lab.vm(GUEST)?.addresses();
        let (mut talks, mut pings, mut flows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut own, mut script) = (Vec::new(), Script::default());
        for name in PEERS {
            for at in &addresses {
                let served = SocketAddr::new(*at, SERVED).to_string();
                let talk = Probe::listening(lab, name, &["talk", &served]).await?;
                talks.push((format!("{name} -> {served}"), talk));
                pings.push(Pings::start(lab, name, *at)?);
                flows.push((name, SocketAddr::new(*at, ECHO).to_string()));
            }
            for (number, at) in lab.vm(name)?.addresses().into_iter().enumerate() {
                own.push(format!("talk-{name}-{number}"));
                let at = SocketAddr::new(at, OUTWARD);
                script.start(&format!("talk-{name}-{number}"), &format!("talk {at}"));
            }
        }
        for (number, at) in lab.vm(THIRD)?.addresses().into_iter().enumerate() {
            own.push(format!("stream-{number}"));
            let at = SocketAddr::new(at, OUTWARD_ECHO);
            script.begin(&format!("stream-{number}"), &format!("stream {at} {PPS} {STREAM_MAX}"));
        }
        script.run(lab).await?;
        let streams = Streams::to_flows(lab, &flows, PPS).await?;
        Ok(Self { lab, streams, talks, pings, own })
    }

    /// Ends all. No connection may have ended, and no gap may be much longer than the guest's pause. Nothing may be lost during the
    /// watch that is at the end. `own` are the guest's own delays at its new host.
    async fn end(self, moved: &GuestMove, watch: Duration, own: &HashMap<Request, Duration>) -> Outcome {
        let is_short = |what: &str, gap: Duration, interval: Duration| {
            println!("    {what}: no answer for {} ms", gap.as_millis());
            // If the source was told, what comes during the pause waits in the tap.
            let pause = if moved.told { Duration::ZERO } else { moved.pause };
            let most = pause + SWITCH_MAX + interval;
            ensure_timely!(gap <= most, "{what}: no answer for {gap:?}, {most:?} at most; {moved:?}");
            Ok(())
        };
        let each = Duration::from_secs(1) / u32::try_from(PPS)?;
        for (what, result) in self.streams.results().await? {
            is_short(&format!("stream {what}"), each * longest_lost(&result)?, each)?;
            lost_nothing(&format!("stream {what}"), &result, watch)?;
        }
        for pings in self.pings {
            // The gap is not bounded: an emulated guest is late itself.
            let heard = pings.end(moved.stopped).await?;
            let (total, network) = heard.longest(own)?;
            let what = &heard.what;
            println!(
                "    {what}: no answer for {} ms; an answer took {} ms at most, and besides the guest {} ms at most",
                heard.gap.as_millis(),
                total.as_millis(),
                network.as_millis()
            );
            ensure_timely!(
                network <= NETWORK_MAX,
                "{what}: besides the guest's own part an answer took {network:?}, {NETWORK_MAX:?} at most"
            );
        }
        for (way, mut talk) in self.talks {
            talk.stop().await?;
            let result = talk.result().await.map_err(|failure| Failure::new(format!("{way}: {failure}")))?;
            is_alive(&way, &result)?;
        }
        let mut script = Script::default();
        script.end(&self.own);
        for line in script.run(self.lab).await?.lines() {
            let (name, text) = line.split_once(' ').unwrap_or((line, ""));
            let result: Value = serde_json::from_str(text)
                .map_err(|error| Failure::new(format!("{name} of the guest said `{text}`: {error}")))?;
            if name.starts_with("talk") {
                is_alive(&format!("the guest's {name}"), &result)?;
                continue;
            }
            // The guest's clock stands still while it is stopped, so it sends nothing meanwhile.
            let lost = number(&result, "sent")? - number(&result, "received")?;
            let most = SWITCH_MAX.as_millis() as u64 * PPS / 1000;
            println!("    the guest's {name}: {lost} packets lost");
            lost_nothing(&format!("the guest's {name}"), &result, watch)?;
            ensure_timely!(lost <= most, "the guest's {name} lost {lost} packets, {most} at most: {result}");
        }
        Ok(())
    }
}

/// How many packets in a row a stream has lost at most.
fn longest_lost(result: &Value) -> Result<u32, Failure> {
    let ranges = result["lost"].as_array().into_iter().flatten();
    let lengths = ranges.filter_map(|range| Some(range[1].as_u64()? + 1 - range[0].as_u64()?));
    Ok(u32::try_from(lengths.max().unwrap_or(0))?)
}

/// A stream has lost nothing of what it has sent during the watch, which is at its end.
fn lost_nothing(what: &str, result: &Value, watch: Duration) -> Outcome {
    let watched = watch.saturating_sub(WATCH_MARGIN).as_secs() * PPS;
    let from = number(result, "sent")?.saturating_sub(watched);
    let ranges = result["lost"].as_array().into_iter().flatten();
    let last = ranges.filter_map(|range| range[1].as_u64()).max();
    let lost_lately = watched > 0 && last.is_some_and(|last| last > from);
    ensure_timely!(!lost_lately, "{what} has lost packets long after the migration: {}", result["lost"]);
    Ok(())
}

/// A connection was not lost.
fn is_alive(way: &str, result: &Value) -> Outcome {
    let (answered, longest_ms) = (number(result, "answered")?, number(result, "longest_ms")?);
    println!("    connection {way}: no answer for {longest_ms} ms");
    ensure!(answered > 10, "{way} was answered only {answered} times");
    Ok(())
}

/// Migrates the guest to a host under traffic, which goes on for `watch`. `tells`: the source is told when the guest is stopped.
async fn migrate(
    lab: &Lab,
    vm: &VmState,
    (to, tells): (&str, bool),
    watch: Duration,
) -> Result<VmState, Failure> {
    let traffic = Traffic::begin(lab).await?;
    let vpc = lab.vpc("web")?.id;
    let (target, mode) = (host_id(lab, to)?, SessionMode::Copy);
    let migration = lab.api().start_migration((vpc, vm.id), target, mode, None).await?;
    let mut waiting = lab.prepare_guest_migration(GUEST, vm, to).await?;
    lab.attach_port(waiting.moved()).await?;
    let delays = GuestDelays::watch(lab, to, &waiting.moved().port).await?;
    is_ready(lab, vm).await?;
    let copied = metric(lab, to, "sluice_migration_sessions_copied_total").await?;
    // 12 connections and 8 streams.
    ensure!(copied >= 20.0, "{to} has copied only {copied} sessions");
    let moved = waiting.run(lab, tells).await?;
    println!(
        "    to {to}: the guest was stopped for {} us; {} KiB were sent within {} ms",
        moved.pause.as_micros(),
        moved.sent_bytes / 1024,
        moved.total.as_millis()
    );
    let paused = metric(lab, &vm.host, "sluice_migration_ports_paused_total").await?;
    ensure!(paused == f64::from(u8::from(tells)), "{} has closed {paused} ports of stopped guests", vm.host);
    ensure!(!moved.pause.is_zero(), "QEMU stopped the guest after it ran elsewhere: {moved:?}");
    let end = lab.api().wait_migrated(vpc, &migration, MIGRATED, |_| {}).await?;
    ensure!(matches!(end, MigrationEnd::Migrated(_)), "{end:?}");
    let instance = lab.api().get::<Instance>(vm.id).await?;
    ensure!(instance.host == target, "the instance is on {:?}", instance.host);
    let vm = waiting.finish(lab).await?;
    tokio::time::sleep(watch).await;
    let own = delays.end().await?;
    traffic.end(&moved, watch, &own).await?;
    Ok(vm)
}
