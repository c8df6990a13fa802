//! Gateways that translate fail under many sessions, or hand over, beside two Linux routers with keepalived and conntrackd. It
//! changes with what is measured of a failure.

mod cloud;
mod held;
mod load;
mod remote;
mod routers;
#[cfg(test)]
mod tests;

use held::{Connections, Held};
use load::{Checked, Client, Place, Storm, Stormed};
use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PEER: &str = "conntrackd";
/// Probes of each client in a second while a gateway fails, and while it hands over.
const PROBES_PER_S: u32 = 1_000;
const PLANNED_PROBES_PER_S: u32 = 10_000;
/// Time of the load before and after a failure.
const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(1_500);
/// TCP connections of each client that stay, and others in a second.
const TCP: (u16, u32) = (2_000, 50);
/// First port of a client's sessions. The second client has others, so that the peer keeps the ports of both.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 1_000;
/// Kills in one lab. Each leaves sessions that a takeover lengthens, so passes would take longer and longer.
const KILLS_OF_LAB: usize = 20;

/// How much is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `sluice` binary that the lab runs.
    pub binary: PathBuf,
    /// The probe that opens TCP connections.
    pub probe: PathBuf,
    /// Kills of the owner.
    pub kills: usize,
    /// Kills of the peer's owner.
    pub peer_kills: usize,
    /// Sessions that stay.
    pub live: usize,
    /// New sessions in a second while a gateway fails.
    pub fresh_per_s: u32,
    /// Drains of the owner.
    pub drains: usize,
    /// Milliseconds between two hellos of a gateway.
    pub hello_ms: u16,
}

/// Two or more gateways of which one translates.
trait Side {
    /// Where clients are.
    fn places(&self) -> Vec<Place>;
    /// The namespace and the address of a server for TCP.
    fn server(&self) -> (String, Ipv4Addr);
    /// Waits until another gateway has all sessions of the one that translates.
    async fn ready(&mut self) -> Result<(), Failure>;
    /// Kills the gateway that translates, as if its machine had died: interfaces, programs, tables and processes. Returns the
    /// time before.
    async fn kill(&mut self) -> Result<Instant, Failure>;
    /// Starts it again without any session, and waits until it has copies of all.
    async fn bring_back(&mut self) -> Result<(), Failure>;
    /// Keeps what explains why the kill of this number lost something. Only Sluice does.
    fn keep_logs(&self, _kill: usize) -> Result<(), Failure> {
        Ok(())
    }
}

/// What one kill cost.
#[derive(Clone, Copy, Debug, Default)]
struct Kill {
    gap_ms: f64,
    fresh: usize,
    half_open: usize,
    /// From the kill to the beginning of the last half-open session.
    half_open_ms: f64,
    checked: Checked,
    tcp: Connections,
}

impl Kill {
    fn lost(&self) -> f64 {
        self.checked.lost() as f64 + self.tcp.lost as f64
    }
}

fn clients(side: &impl Side) -> Result<(Vec<Place>, Vec<Client>), Failure> {
    let mut places = side.places();
    for (place, number) in places.iter_mut().zip(0..) {
        place.from.set_port(FIRST_PORT + number * PORTS);
    }
    let clients = places.iter().map(Client::start).collect::<Result<_, _>>()?;
    Ok((places, clients))
}

/// Kills what translates, again and again, under the load.
async fn kills(side: &mut impl Side, settings: &Settings, kills: usize) -> Result<Vec<Kill>, Failure> {
    let (places, clients) = clients(side)?;
    let (namespace, address) = side.server();
    let mut held = Held::open(&settings.probe, (&namespace, address), &places, TCP)?;
    load::open(&clients, settings.live / clients.len())?;
    let mut all = Vec::new();
    for number in 1..=kills {
        side.ready().await?;
        let kill = one_kill(side, settings, &clients, &mut held).await?;
        eprintln!("bench-internet: kill {number}: {kill:?}");
        if kill.lost() > 0.0 {
            side.keep_logs(number)?;
        }
        all.push(kill);
        side.bring_back().await?;
    }
    Ok(all)
}

async fn one_kill(
    side: &mut impl Side,
    settings: &Settings,
    clients: &[Client],
    held: &mut Held,
) -> Result<Kill, Failure> {
    let end = Arc::new(AtomicBool::new(false));
    let fresh_per_s = settings.fresh_per_s / clients.len() as u32;
    load::storm(clients, &Storm { probes_per_s: PROBES_PER_S, fresh_per_s, end: end.clone() });
    tokio::time::sleep(BEFORE).await;
    let killed = side.kill().await;
    tokio::time::sleep(AFTER).await;
    end.store(true, Ordering::Relaxed);
    let stormed = load::stormed(clients)?;
    let killed = killed?;
    let mut kill = Kill::default();
    for Stormed { probes, fresh, half_open } in &stormed {
        let gap = load::longest_gap(probes, killed)?;
        kill.gap_ms = kill.gap_ms.max(gap.as_secs_f64() * 1e3);
        kill.fresh += fresh;
        kill.half_open += half_open.len();
        let last =
            half_open.iter().max().map_or(0.0, |last| last.saturating_duration_since(killed).as_secs_f64());
        kill.half_open_ms = kill.half_open_ms.max(last * 1e3);
    }
    if kill.gap_ms == 0.0 {
        return Err("no probe was lost: what was killed did not translate".into());
    }
    kill.checked = load::check(clients)?;
    kill.tcp = held.check()?;
    Ok(kill)
}

/// Packets that a client lost while the owner hands over and gets its NAT gateway back.
async fn drains(cloud: &mut cloud::Cloud, settings: &Settings) -> Result<Vec<f64>, Failure> {
    let (_, clients) = clients(cloud)?;
    let sender = &clients[..1];
    load::open(sender, 1)?;
    let mut lost = Vec::new();
    for number in 1..=settings.drains {
        cloud.settled().await?;
        let end = Arc::new(AtomicBool::new(false));
        load::storm(sender, &Storm { probes_per_s: PLANNED_PROBES_PER_S, fresh_per_s: 0, end: end.clone() });
        tokio::time::sleep(BEFORE).await;
        let moved = async {
            let owner = cloud.drain_owner().await?;
            tokio::time::sleep(AFTER).await;
            cloud.undrain(owner).await?;
            tokio::time::sleep(AFTER).await;
            Ok::<_, Failure>(())
        };
        let moved = moved.await;
        end.store(true, Ordering::Relaxed);
        let stormed = load::stormed(sender)?;
        moved?;
        let probes: Vec<_> = stormed.into_iter().flat_map(|stormed| stormed.probes).collect();
        let missing = probes.iter().filter(|(_, answered)| !answered).count();
        eprintln!("bench-internet: drain {number}: {missing} of {} packets lost", probes.len());
        lost.push(missing as f64);
    }
    Ok(lost)
}

/// Measures `failover_*`, `planned_lost_packets`, and what the peer loses.
///
/// # Errors
/// Errors of the labs.
pub fn measure(settings: &Settings) -> Result<(Vec<Measure>, Vec<String>), Failure> {
    let planned =
        cloud::with_cloud(&settings.binary, settings.hello_ms, async |cloud| drains(cloud, settings).await)?;
    let mut ours = Vec::new();
    while ours.len() < settings.kills {
        let some = (settings.kills - ours.len()).min(KILLS_OF_LAB);
        eprintln!("bench-internet: another lab after {} kills", ours.len());
        ours.extend(cloud::with_cloud(&settings.binary, settings.hello_ms, async |cloud| {
            kills(cloud, settings, some).await
        })?);
    }
    let theirs = routers::with_routers(settings.live, async |routers| {
        kills(routers, settings, settings.peer_kills).await
    })?;
    Ok(report(settings, &ours, &theirs, &planned))
}

fn report(
    settings: &Settings,
    ours: &[Kill],
    theirs: &[Kill],
    planned: &[f64],
) -> (Vec<Measure>, Vec<String>) {
    let row = |name: &str, unit, of: fn(&Kill) -> f64| {
        let [ours, theirs] = [ours, theirs].map(|kills| kills.iter().map(of).collect::<Vec<_>>());
        Measure::apart(name, unit, &ours, (PEER, &theirs))
    };
    let measures = vec![
        row("failover_sessions_lost", "sessions", Kill::lost),
        row("failover_gap_ms", "ms", |kill| kill.gap_ms),
        row("failover_half_open", "sessions", |kill| kill.half_open as f64),
        row("failover_half_open_ms", "ms", |kill| kill.half_open_ms),
        row("failover_never_begun", "sessions", |kill| kill.checked.never_begun as f64),
        Measure::alone("planned_lost_packets", "packets", planned),
    ];
    let sum = |kills: &[Kill], of: fn(&Kill) -> usize| kills.iter().map(of).sum::<usize>();
    let note = |name: &str, every: &str, kills: &[Kill]| {
        let fresh = sum(kills, |kill| kill.fresh) as f64 / kills.len().max(1) as f64;
        let half_open = kills.iter().map(|kill| kill.half_open).max().unwrap_or_default();
        let until_ms = kills.iter().map(|kill| kill.half_open_ms).fold(0.0, f64::max);
        format!(
            "failover, {name}: {} kills, {every}; {} sessions by UDP and {} by TCP stay, {fresh:.0} new ones around each kill, of \
             which at most {half_open} were half-open; {:.0} began until the last of them did; in all, {} sessions have \
             another public endpoint afterwards, {} are silent, {} connections of TCP ended, and {} others failed",
            kills.len(),
            settings.live,
            kills.first().map_or(0, |kill| kill.tcp.held),
            f64::from(settings.fresh_per_s) * until_ms / 1e3,
            sum(kills, |kill| kill.checked.moved),
            sum(kills, |kill| kill.checked.silent),
            sum(kills, |kill| kill.tcp.lost as usize),
            kills.last().map_or(0, |kill| kill.tcp.others_failed),
        )
    };
    let hellos = format!("a hello every {} ms", settings.hello_ms);
    let advertisements = format!("an advertisement every {} s", routers::ADVERTISEMENT);
    (measures, vec![note("Sluice", &hellos, ours), note(PEER, &advertisements, theirs)])
}
