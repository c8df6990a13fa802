//! Live migrations (Achelous figures 16 to 18): for how long a VM that moves does not answer, beyond its own pause, and how many
//! connections that costs. It changes with what is compared.

mod capture;
mod client;
mod cloud;
mod traffic;

use cloud::{Cloud, Cost, Way, lacks_guests, with_cloud};
use sluice_bench_report::shell::Failure;
use sluice_bench_report::{Better, Measure, median};
use sluice_client::SessionMode;
use sluice_lab::Guest;
use std::path::PathBuf;
use std::time::Duration;

/// The VM echoes datagrams and connections here; connections at 8 ports.
const ECHO: u16 = 7620;
const SERVED: u16 = 7601;
/// Moves after which an application connects again by a timer: each takes as long as the timer.
const TIMED_MOVES: usize = 3;
const KINDS: [&str; 3] = ["icmp", "udp", "tcp"];
const PLAIN: &str = "no redirect";
const TIMER: &str = "reconnect by timer";
const BLOCKED: &str = "rules block";

/// Explanation of the measurements for readers of the results.
pub const METHOD: &str = "\
`migrate_*`: a VM moves to and fro between two hosts; a peer on a third host sends pings, datagrams (UDP) and bytes by a TCP connection, each
of both families every 2 ms, and captures what comes back. `_icmp`, `_udp`, `_tcp`: the longest time without such a packet from the VM, the worse
of both families, minus the VM's own pause; one answer comes every 2 ms, so less than that is not distinguished. For TCP that is any
segment of the connection: the peer's route lets it send new segments for 2 s without an acknowledgment, so that the time until its
timer repeats one is no part of it. `_app`: the same for the applications with these connections: one answer to the next, over whichever
connection. The VM is a namespace that gets another link; its pause lasts from the first datagram that its own kernel refuses to send
to the next one that it sends, tried every 0.5 ms. The figures are of all moves: least, median, most.
`migrate_tr_*` (TR, `--sessions none`): the port is not filtered. `no redirect`: the API is told of the new host when the VM runs there, as
`instances move` does, and the port is attached at once; the two take turns.
`migrate_ss_*` (TR+SS, `--sessions copy`): the port is filtered, and its rules permit new connections. `rules block` is the same with `--sessions none`, so
that no packet of the connection passes again, and the time has no end.
`migrate_sr_*` (TR+SR, `--sessions reset`): the peers get an RST, and their application connects again at once. `reconnect by timer`: without an
RST (`--sessions none`), and the application connects again after 32 s without an answer; measured, in three moves. `migrate_lost_connections`: of two in
each migration with `copy`, those that ended, or were silent from 0.3 to 0.6 s after the migration (QEMU: 1 to 2 s); `rules block` as above.
`_qemu_*`: the VM is a guest of QEMU, which QEMU migrates, with packets every 20 ms; its pause is from QEMU's STOP to the other one's RESUME.
Without KVM the guest is emulated, and is late with its answers for some time after it goes on.";

/// How much is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `sluice` binary that the lab runs.
    pub binary: PathBuf,
    /// The program `sluice-probe`, which answers in the VM.
    pub probe: PathBuf,
    /// Moves of each kind of a VM that is a namespace.
    pub moves: usize,
    /// Migrations of each kind of a guest of QEMU.
    pub guests: usize,
    /// After this time without an answer, an application connects again.
    pub timer: Duration,
}

/// Measures `migrate_*`. Returns the measures and notes.
///
/// # Errors
/// Errors of the labs.
pub fn measure(settings: &Settings) -> Result<(Vec<Measure>, Vec<String>), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let Settings { binary, probe, guests, .. } = settings;
        let work = async |cloud: &mut Cloud| of_namespace(settings, cloud).await;
        let (mut measures, mut notes) = with_cloud(binary, probe, Guest::Namespace, work).await?;
        if *guests == 0 {
            return Ok((measures, notes));
        }
        let work = async |cloud: &mut Cloud| of_guest(*guests, cloud).await;
        match with_cloud(binary, probe, Guest::Qemu, work).await {
            Ok((more, said)) => {
                measures.extend(more);
                notes.extend(said);
            }
            Err(error) if lacks_guests(&error) => notes.push(format!(
                "migrations of guests of QEMU were skipped: {error}. `make setup-test` prepares what they need"
            )),
            Err(error) => return Err(error),
        }
        Ok((measures, notes))
    })
}

async fn of_namespace(
    settings: &Settings,
    cloud: &mut Cloud,
) -> Result<(Vec<Measure>, Vec<String>), Failure> {
    let (mut redirected, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..settings.moves {
        redirected.push(cloud.moved(Way::Migration(SessionMode::None), None).await?);
        plain.push(cloud.moved(Way::Plain, None).await?);
    }
    cloud.protect().await?;
    let copied = migrations(cloud, SessionMode::Copy, settings.moves).await?;
    let reset = migrations(cloud, SessionMode::Reset, settings.moves).await?;
    let mut timed = Vec::new();
    for _ in 0..TIMED_MOVES.min(settings.moves) {
        timed.push(cloud.moved(Way::Migration(SessionMode::None), Some(settings.timer)).await?);
    }
    let mut measures: Vec<Measure> = KINDS
        .iter()
        .enumerate()
        .map(|(number, kind)| {
            let of = |costs: &[Cost]| column(costs, |cost| cost.packets_ms[number]);
            let (name, theirs) = (format!("migrate_tr_ms_{kind}"), of(&plain));
            Measure::zipped(name, "ms", Better::Less, &of(&redirected), (PLAIN, &theirs))
        })
        .collect();
    measures.extend(packets("migrate_ss_ms", &copied));
    let application = |costs: &[Cost]| column(costs, |cost| cost.application_ms);
    measures.push(Measure::unfinished("migrate_ss_ms_app", "ms", &application(&copied), BLOCKED));
    let (ours, theirs) = (application(&reset), application(&timed));
    measures.push(Measure::apart("migrate_sr_ms_app", "ms", &ours, (TIMER, &theirs)));
    let (ours, theirs) = (lost(&copied), lost(&timed));
    measures.push(Measure::apart("migrate_lost_connections", "", &ours, (BLOCKED, &theirs)));
    let sides =
        [("TR", &redirected), (PLAIN, &plain), ("TR+SS", &copied), ("TR+SR", &reset), (BLOCKED, &timed)];
    Ok((measures, sides.into_iter().map(|(name, costs)| note(name, costs)).collect()))
}

async fn of_guest(count: usize, cloud: &mut Cloud) -> Result<(Vec<Measure>, Vec<String>), Failure> {
    let redirected = migrations(cloud, SessionMode::None, count).await?;
    cloud.protect().await?;
    let copied = migrations(cloud, SessionMode::Copy, count).await?;
    let reset = migrations(cloud, SessionMode::Reset, count).await?;
    let mut measures = packets("migrate_tr_ms_qemu", &redirected);
    measures.extend(packets("migrate_ss_ms_qemu", &copied));
    let application = column(&reset, |cost| cost.application_ms);
    measures.push(Measure::alone("migrate_sr_ms_qemu_app", "ms", &application));
    measures.push(Measure::alone("migrate_lost_connections_qemu", "", &lost(&copied)));
    let sides = [("QEMU, TR", &redirected), ("QEMU, TR+SS", &copied), ("QEMU, TR+SR", &reset)];
    Ok((measures, sides.into_iter().map(|(name, costs)| note(name, costs)).collect()))
}

async fn migrations(cloud: &mut Cloud, mode: SessionMode, count: usize) -> Result<Vec<Cost>, Failure> {
    let mut costs = Vec::new();
    for _ in 0..count {
        costs.push(cloud.moved(Way::Migration(mode), None).await?);
    }
    Ok(costs)
}

fn column(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> Vec<f64> {
    costs.iter().map(of).collect()
}

fn lost(costs: &[Cost]) -> Vec<f64> {
    column(costs, |cost| f64::from(cost.lost))
}

/// A measure for each kind of packets.
fn packets(name: &str, costs: &[Cost]) -> Vec<Measure> {
    let one = |(number, kind): (usize, &&str)| {
        Measure::alone(format!("{name}_{kind}"), "ms", &column(costs, |cost| cost.packets_ms[number]))
    };
    KINDS.iter().enumerate().map(one).collect()
}

/// What the table does not tell of these moves.
fn note(name: &str, costs: &[Cost]) -> String {
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let pauses = column(costs, |cost| cost.pause_ms);
    let application = column(costs, |cost| cost.application_ms);
    format!(
        "{name}: {} moves; the VM's own pause {:.1} ms, at most {:.1}; its applications without an answer beyond that {:.1} ms, at \
         most {:.1}; {} of {} connections lost",
        costs.len(),
        median(pauses.clone()),
        most(&pauses),
        median(application.clone()),
        most(&application),
        lost(costs).iter().sum::<f64>(),
        2 * costs.len()
    )
}
