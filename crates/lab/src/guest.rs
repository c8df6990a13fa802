//! Guests of QEMU: VMs with a kernel of their own, Debian's, and virtio-net interfaces whose other ends are taps in the
//! namespace of the host, as on a real one. This file changes with what a guest consists of and how it boots.
//!
//! All guests of a lab boot the same initial file system, which has busybox, the programs that [`PROGRAMS`] names and
//! those of the topology. A guest configures itself (`guest/init.sh`), also after a reset. Commands run in it by
//! [`channel`]s.

pub(crate) mod channel;
pub(crate) mod qmp;

use crate::configure::{BOOT_TIMEOUT, ROUTE_BY_SOURCE};
use crate::error::{Error, IoContext, Result};
use crate::exec::{command, feed, tail, words};
use crate::lab::{Lab, VmState};
use crate::paths::Paths;
use crate::process::Process;
use sluice_types::Ipv6Mode;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

const QEMU: &str = "qemu-system-x86_64";
/// Programs of this machine that every guest has, besides busybox.
const PROGRAMS: [&str; 4] = ["ip", "ethtool", "ping", "dhclient"];
/// Memory of a guest. Its kernel and file system take half of it.
const MEMORY_MIB: u32 = 192;
/// Longest time in which the kernel boots by KVM, and finds no file system. It takes about a second.
const KVM_SECONDS_MAX: u32 = 10;
/// The files of the initial file system that this crate has, and the script that adds the others.
const FILES: [(&str, &str); 7] = [
    ("init", include_str!("guest/init.sh")),
    ("guest/dhcp", include_str!("guest/dhcp.sh")),
    ("guest/dhcp6", include_str!("guest/dhcp6.sh")),
    ("guest/route-by-source", ROUTE_BY_SOURCE),
    ("guest/run", include_str!("guest/run.sh")),
    ("guest/serve", include_str!("guest/serve.sh")),
    // `dhclient` keeps its leases elsewhere, but wants its directory.
    ("var/lib/dhcp/none", ""),
];
const BUILD: &str = include_str!("guest/build.sh");

/// The kernel and the modules that `scripts/guest-kernel.sh` prepares.
fn kernel() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
    let kernel = cache.join("sluice/kernels/guest");
    if kernel.join("vmlinuz").exists() { Ok(kernel) } else { Err(Error::NoGuestKernel(kernel)) }
}

/// Path of a program of this machine.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Not every caller's PATH has the programs of the administrator.
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|file| file.exists())
}

/// Builds the initial file system of the lab's guests.
pub(crate) async fn build_image(lab: &Lab) -> Result<()> {
    let missing = |tool, package| Error::MissingTool { tool, package };
    find(QEMU).ok_or_else(|| missing(QEMU, "qemu-system-x86"))?;
    let directory = lab.paths.root().join("guest");
    for (name, text) in FILES {
        let file = directory.join(name);
        let parent = file.parent().unwrap_or(&directory);
        fs::create_dir_all(parent).context("cannot make", parent)?;
        fs::write(&file, text).context("cannot write", file)?;
    }
    // `check_tools` has found these.
    let own = PROGRAMS.into_iter().filter_map(find);
    let programs = own.chain(lab.state.topology.guest_programs.iter().cloned());
    let paths = [directory, lab.paths.guest_image(), kernel()?].into_iter().chain(programs);
    let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    let argv = [words(&["sh", "-ec", BUILD, "build"]), paths].concat();
    feed("building the guests' file system", command(&lab.paths, None, &argv), "").await.map(drop)
}

/// `kvm` if it boots the guests' kernel, which takes more than the device: where nested virtualization is incomplete, QEMU starts,
/// and the guest hangs or its processor stops. Without a file system, the kernel soon reboots, and QEMU ends.
async fn accelerator(paths: &Paths, kernel: &str) -> &'static str {
    static FOUND: OnceCell<&str> = OnceCell::const_new();
    let look = async || {
        if !Path::new("/dev/kvm").exists() {
            return "tcg";
        }
        let limit = KVM_SECONDS_MAX.to_string();
        let own = ["timeout", &limit, QEMU, "-accel", "kvm", "-cpu", "max", "-m", "192", "-nodefaults"];
        let boot = ["-display", "none", "-no-reboot", "-kernel", kernel, "-append", "panic=-1"];
        let probe = feed("trying KVM", command(paths, None, &words(&[&own[..], &boot].concat())), "").await;
        if probe.is_ok() { "kvm" } else { "tcg" }
    };
    FOUND.get_or_init(look).await
}

/// The interfaces of a guest, in their order.
pub(crate) fn interfaces<'a>(lab: &'a Lab, name: &str) -> Vec<&'a VmState> {
    let mut vms: Vec<_> = lab.state.vms.values().filter(|vm| vm.machine == name).collect();
    vms.sort_by(|a, b| a.interface.cmp(&b.interface));
    vms
}

/// Starts a guest whose taps exist. It then boots by itself.
pub(crate) async fn boot(lab: &Lab, name: &str) -> Result<Process> {
    let vms = interfaces(lab, name);
    let host = vms.first().map(|vm| vm.host.as_str());
    let argv = arguments(&lab.paths, name, &vms).await?;
    Process::start(&lab.paths, name, host, argv)
}

/// The command that runs a guest with these interfaces. `sockets` is the name that its sockets begin with.
pub(crate) async fn arguments(paths: &Paths, sockets: &str, vms: &[&VmState]) -> Result<Vec<String>> {
    let kernel = kernel()?;
    let mut line = format!("console=ttyS0 quiet panic=-1 edd=off no_timer_check channels={}", channel::COUNT);
    let mut devices = words(&["-device", "virtio-serial-pci"]);
    for (number, vm) in vms.iter().enumerate() {
        let families = match (vm.ipv4, vm.ipv6) {
            (Some(_), Some(_)) => "46",
            (Some(_), None) => "4",
            _ => "6",
        };
        let mode = if vm.ipv6_mode == Some(Ipv6Mode::Dhcp) { "dhcp" } else { "slaac" };
        let _ = write!(line, " nic{number}={families},{mode}");
        let (port, mac) = (&vm.port, vm.mac);
        devices.push("-netdev".to_owned());
        devices.push(format!("tap,id=net{number},ifname={port},script=no,downscript=no,vhost=off"));
        devices.push("-device".to_owned());
        devices.push(format!("virtio-net-pci,netdev=net{number},mac={mac},romfile="));
    }
    for number in 0..channel::COUNT {
        let socket = paths.guest_channel(sockets, number);
        devices.push("-chardev".to_owned());
        devices.push(format!("socket,id=channel{number},server=on,wait=off,path={}", socket.display()));
        devices.push("-device".to_owned());
        devices.push(format!("virtserialport,chardev=channel{number},name=channel{number}"));
    }
    let server = |socket: PathBuf| format!("unix:{},server=on,wait=off", socket.display());
    let (monitor, qmp) = (server(paths.guest_monitor(sockets)), server(paths.guest_qmp(sockets)));
    let (image, memory) = (paths.guest_image().display().to_string(), MEMORY_MIB.to_string());
    let kernel = kernel.join("vmlinuz").display().to_string();
    let own = [
        QEMU,
        "-accel",
        accelerator(paths, &kernel).await,
        "-cpu",
        "max",
        "-m",
        &memory,
        "-nodefaults",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-monitor",
        &monitor,
        "-qmp",
        &qmp,
        "-kernel",
        &kernel,
        "-initrd",
        &image,
        "-append",
        &line,
    ];
    Ok([words(&own), devices].concat())
}

impl Lab {
    /// Resets a guest of QEMU, as a button on a machine does: it boots again, with the same interfaces and taps. Returns
    /// when it has its addresses.
    ///
    /// # Errors
    /// [`Error::Io`] if the guest does not run, [`Error::Timeout`] if it does not come back.
    pub async fn reset_guest(&self, name: &str) -> Result<()> {
        let before = self.configured(name);
        let socket = self.paths.guest_monitor(name);
        let reset = async {
            let mut monitor = UnixStream::connect(&socket).await?;
            monitor.write_all(b"system_reset\n").await.map(|()| monitor)
        };
        // QEMU forgets commands that it has not read when the connection ends.
        let _monitor = reset.await.context("cannot reset the guest at", &socket)?;
        self.returned(name, before).await
    }

    /// Starts a guest of QEMU that has ended. Returns when it has its addresses.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Died`], [`Error::Timeout`] if it does not come back.
    pub async fn restart_guest(&self, name: &str) -> Result<()> {
        let before = self.configured(name);
        self.restart(name)?;
        self.returned(name, before).await
    }

    /// Waits until each interface of a guest has its addresses once more than `before`.
    async fn returned(&self, name: &str, before: usize) -> Result<()> {
        let interfaces = self.state.vms.values().filter(|vm| vm.machine == name).count();
        let process = self.process(name)?;
        let until = Instant::now() + BOOT_TIMEOUT;
        while Instant::now() < until {
            process.check(&self.paths)?;
            // Not by a channel: QEMU notices only when the guest has booted that a command which waits has ended.
            if self.configured(name) >= before + interfaces {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let hint = format!("; the end of its log:\n{}", tail(&self.paths, name));
        Err(Error::Timeout { what: format!("return of {name}"), seconds: BOOT_TIMEOUT.as_secs(), hint })
    }

    /// How often a guest has reported that an interface has its addresses (`guest/init.sh`).
    fn configured(&self, name: &str) -> usize {
        let console = fs::read(self.paths.log(name)).unwrap_or_default();
        String::from_utf8_lossy(&console).matches("has its addresses").count()
    }
}
