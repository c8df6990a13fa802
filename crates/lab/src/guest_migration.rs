//! Live migration of a guest of QEMU, by QEMU itself: another QEMU with the same devices waits on the target host, and
//! gets the guest's memory while the guest runs. Then the first one stops the guest, sends the rest, and the other one
//! runs it. Both are of this machine, so a UNIX socket connects them across the hosts' namespaces.
//!
//! The waiting QEMU has sockets of its own. When it has the guest, they get the names by which the guest is known.

use crate::error::{Error, IoContext, Result};
use crate::exec::{script, words};
use crate::guest::qmp::{Event, Qmp};
use crate::guest::{arguments, channel, interfaces};
use crate::lab::{Lab, VmState};
use crate::migration::migrated;
use crate::paths::Paths;
use crate::process::Process;
use crate::vm::{pause, prepare_port};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for the end of a migration: an emulated guest on a busy machine makes memory dirty while it is sent.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait until the target runs a guest that it has.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the end of a QEMU that was killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// QEMU stops the guest when it expects to send the rest within this time.
const DOWNTIME_MS: u64 = 100;
/// Its default is that of a network of 1 Gbit/s.
const BYTES_PER_SECOND: u64 = 1 << 30;

/// The name of the QEMU that waits for a guest, and that its sockets begin with.
fn incoming(guest: &str) -> String {
    format!("{guest}.incoming")
}

/// All sockets of a QEMU.
fn sockets(paths: &Paths, name: &str) -> Vec<PathBuf> {
    let channels = (0..channel::COUNT).map(|number| paths.guest_channel(name, number));
    channels.chain([paths.guest_monitor(name), paths.guest_qmp(name)]).collect()
}

/// A migration of a guest, for which a QEMU waits on the target host.
#[derive(Debug)]
pub struct GuestMigration {
    guest: String,
    before: VmState,
    moved: VmState,
    source: (Process, Qmp),
    target: (Process, Qmp),
}

/// How a guest has migrated.
#[derive(Clone, Debug)]
pub struct GuestMove {
    /// When the guest was stopped on the source host, since the UNIX epoch.
    pub stopped: Duration,
    /// From then on until it ran on the target host.
    pub pause: Duration,
    /// Whether the source's agent was told when the guest was stopped, so that the target's tap has kept what came.
    pub told: bool,
    /// From the begin of the migration to its end.
    pub total: Duration,
    /// The memory and state of devices that were sent.
    pub sent_bytes: u64,
    /// What the source reported.
    pub source: Vec<Event>,
    /// What the target reported.
    pub target: Vec<Event>,
}

impl Lab {
    /// Makes a tap for a guest of QEMU on the target host, and starts a QEMU there that waits for the guest. The tap is
    /// not attached. The guest has one interface.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is no such host, [`Error::Form`] if the guest has several interfaces, and errors of
    /// the commands and of QEMU.
    pub async fn prepare_guest_migration(
        &self,
        guest: &str,
        vm: &VmState,
        host: &str,
    ) -> Result<GuestMigration> {
        self.node(host)?;
        let count = interfaces(self, guest).len();
        if count != 1 {
            let problem = format!("it has {count} interfaces, and only a guest with one can migrate");
            return Err(Error::Form { what: format!("guest {guest}"), problem });
        }
        let moved = migrated(guest, vm, host);
        prepare_port(self, guest, &moved).await?;
        let (paths, name) = (&self.paths, incoming(guest));
        let wait = words(&["-incoming", "defer"]);
        let argv = [arguments(paths, &name, &[&moved]).await?, wait].concat();
        let process = Process::start_with_log(paths, (&*name, guest), Some(host), argv)?;
        let mut target = Qmp::connect(paths.guest_qmp(&name)).await?;
        let mut source = Qmp::connect(paths.guest_qmp(guest)).await?;
        let report = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        for qmp in [&mut target, &mut source] {
            qmp.execute("migrate-set-capabilities", report.clone()).await?;
        }
        let limits = json!({ "max-bandwidth": BYTES_PER_SECOND, "downtime-limit": DOWNTIME_MS });
        source.execute("migrate-set-parameters", limits).await?;
        let at = json!({ "uri": uri(paths, guest) });
        target.execute("migrate-incoming", at).await?;
        Ok(GuestMigration {
            guest: guest.to_owned(),
            before: vm.clone(),
            moved,
            source: (self.process(guest)?, source),
            target: (process, target),
        })
    }
}

/// Where the target listens, as QEMU names it.
fn uri(paths: &Paths, guest: &str) -> String {
    format!("unix:{}", paths.guest_migration(guest).display())
}

impl GuestMigration {
    /// The VM as it is after its migration.
    pub fn moved(&self) -> &VmState {
        &self.moved
    }

    /// Migrates the guest; returns when it runs on the target host. The QEMU of the source remains, with the guest
    /// stopped. `tells`: as soon as it is stopped, the agent of the source is told.
    ///
    /// # Errors
    /// [`Error::Command`] if QEMU fails to migrate it, [`Error::Timeout`], errors of `sluice port pause`.
    pub async fn run(&mut self, lab: &Lab, tells: bool) -> Result<GuestMove> {
        let (source, target) = (&mut self.source.1, &mut self.target.1);
        source.execute("migrate", json!({ "uri": uri(&lab.paths, &self.guest) })).await?;
        let is_end = |event: &Event| {
            event.name == "MIGRATION" && ["completed", "failed", "cancelled"].contains(&&*event.status)
        };
        let what = format!("migration of {}", self.guest);
        let is_stop = |event: &Event| event.name == "STOP" || is_end(event);
        if tells && source.event(&what, MIGRATION_TIMEOUT, is_stop).await?.name == "STOP" {
            pause(lab, &self.before).await?;
        }
        let end = source.event(&what, MIGRATION_TIMEOUT, is_end).await?;
        let report = source.execute("query-migrate", json!({})).await?;
        if end.status != "completed" {
            let reason = report["error-desc"].as_str().unwrap_or("QEMU gives no reason").to_owned();
            return Err(Error::Command { what, status: end.status, output: reason });
        }
        let running = target.event("return of the guest", RESUME_TIMEOUT, |it| it.name == "RESUME").await?;
        let stopped = source.event("stop of the guest", RESUME_TIMEOUT, |it| it.name == "STOP").await?;
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        Ok(GuestMove {
            stopped: stopped.at,
            told: tells,
            pause: running.at.saturating_sub(stopped.at),
            total: Duration::from_millis(number(&report["total-time"])),
            sent_bytes: number(&report["ram"]["transferred"]),
            source: source.events(),
            target: target.events(),
        })
    }

    /// Ends the QEMU of the source and removes its tap. The guest is then known as before, on its new host.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the QEMU does not end, [`Error::Io`], errors of `ip`.
    pub async fn finish(self, lab: &Lab) -> Result<VmState> {
        let (paths, guest) = (&lab.paths, self.guest.as_str());
        let (process, _) = self.source;
        // Not by SIGTERM: then it would remove its sockets by their names.
        process.signal(Signal::SIGKILL);
        if !process.ended(END_TIMEOUT).await {
            let (what, seconds) = (format!("end of the old QEMU of {guest}"), END_TIMEOUT.as_secs());
            return Err(Error::Timeout { what, seconds, hint: String::new() });
        }
        for (from, to) in sockets(paths, &incoming(guest)).into_iter().zip(sockets(paths, guest)) {
            fs::rename(&from, &to).context("cannot rename", from)?;
        }
        // Without `-incoming`: a restart boots the guest.
        let argv = arguments(paths, guest, &[&self.moved]).await?;
        self.target.0.rename(paths, guest, argv)?;
        let text = format!("ip link del {}\n", self.before.port);
        script(paths, &self.before.host, "removing the tap of a guest", &text).await?;
        Ok(self.moved)
    }
}
