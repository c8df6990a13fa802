//! Attaches programs to interfaces so that the attachments outlive this process.
//!
//! Every attachment has a pin in `PIN_DIR/links`, or in `PIN_DIR/underlay` on interfaces that the programs share
//! with the host's own traffic. Its name consists of the kind of hook, the interface's index and its name:
//! `xdp-2-eth0`, `tcx-5-sluice~vx`, `cls-5-tap0`. A pin of kind `xdp` or `tcx` is the BPF link itself. Kernels
//! before 6.6 have no tcx: there the interface's clsact filter holds the attachment, and the pin of kind `cls`
//! holds the program and records that the filter exists.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{TC_INGRESS, TcHook, TcHookBuilder, libbpf_sys};

use crate::maps::create_pin_dir;
use crate::{Error, sys};

/// A network interface of the current namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interface {
    /// Interface index: unique within the namespace and not reused soon.
    pub index: u32,
    /// Name, for example `eth0`.
    pub name: String,
}

impl Interface {
    /// Finds an interface by name.
    ///
    /// # Errors
    /// [`Error::NoInterface`].
    pub fn by_name(name: &str) -> Result<Self, Error> {
        let index = nix::net::if_::if_nametoindex(name).map_err(|_| Error::NoInterface(name.to_owned()))?;
        Ok(Self { index, name: name.to_owned() })
    }
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// XDP in the driver.
    XdpNative,
    /// XDP in the network core, for drivers without XDP support.
    XdpGeneric,
    /// tcx, which Linux has since 6.6.
    Tcx,
    /// A classifier on the clsact queueing discipline.
    Clsact,
    /// An attachment of an earlier agent, which now runs the new program.
    Adopted,
}

/// Kind of hook, the first part of a pin's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Xdp,
    Tcx,
    Cls,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Xdp, Self::Tcx, Self::Cls];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tcx => "tcx",
            Self::Cls => "cls",
        }
    }

    fn pin(self, links: &Path, interface: &Interface) -> PathBuf {
        // The BPF file system does not allow dots in names.
        let name = interface.name.replace('~', "~0").replace('.', "~1");
        links.join(format!("{}-{}-{name}", self.prefix(), interface.index))
    }

    /// The inverse of [`Kind::pin`].
    fn parse(name: &str) -> Option<(Self, Interface)> {
        let mut parts = name.splitn(3, '-');
        let prefix = parts.next()?;
        let kind = Self::ALL.into_iter().find(|kind| kind.prefix() == prefix)?;
        let index = parts.next()?.parse().ok()?;
        let name = parts.next()?.replace("~1", ".").replace("~0", "~");
        Some((kind, Interface { index, name }))
    }
}

const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const TC_HANDLE: u32 = 1;
/// Priority of classifiers on interfaces that have no program but Sluice's.
const TC_PRIORITY: u32 = 1;
/// Priority of classifiers on shared interfaces, behind those of other software, which often have priority 1.
const TC_PRIORITY_SHARED: u32 = 100;

/// The attachments to interfaces of one kind: where they are pinned, and the priority of their classifiers.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    dir: PathBuf,
    priority: u32,
}

impl Links {
    /// Attachments to interfaces that only Sluice uses: of gateways, of ports and of the VXLAN device.
    pub(crate) fn own(pin_dir: &Path) -> Self {
        Self { dir: pin_dir.join("links"), priority: TC_PRIORITY }
    }

    /// Attachments to a host's underlay interfaces, whose traffic is mostly not Sluice's.
    pub(crate) fn shared(pin_dir: &Path) -> Self {
        Self { dir: pin_dir.join("underlay"), priority: TC_PRIORITY_SHARED }
    }

    /// Makes the directory of the pins, and removes those of deleted interfaces.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        create_pin_dir(&self.dir)?;
        self.remove_stale_pins()
    }

    /// Attaches `program` to the interface's XDP hook, or replaces the program of an earlier agent's attachment.
    pub(crate) fn attach_xdp(
        &self,
        program: BorrowedFd<'_>,
        interface: &Interface,
    ) -> Result<Attachment, Error> {
        let pin = Kind::Xdp.pin(&self.dir, interface);
        if adopt(&pin, program, interface)? {
            return Ok(Attachment::Adopted);
        }
        let native = sys::link_create(program, interface.index, libbpf_sys::BPF_XDP, XDP_FLAGS_DRV_MODE);
        let (link, mode) = match native {
            Ok(link) => (link, Attachment::XdpNative),
            Err(error) if is_busy(&error) => return Err(Error::Occupied(interface.name.clone())),
            Err(error) => {
                tracing::warn!(
                    interface = interface.name,
                    %error,
                    "cannot attach XDP in the driver; using the slower generic mode"
                );
                let generic =
                    sys::link_create(program, interface.index, libbpf_sys::BPF_XDP, XDP_FLAGS_SKB_MODE);
                let link = generic.map_err(|error| match is_busy(&error) {
                    true => Error::Occupied(interface.name.clone()),
                    false => Error::system(format!("attach XDP to {}", interface.name))(error),
                })?;
                (link, Attachment::XdpGeneric)
            }
        };
        sys::pin(link.as_fd(), &pin).map_err(Error::system(format!("pin {}", pin.display())))?;
        Ok(mode)
    }

    /// Attaches `program` to the interface's TC ingress hook, or replaces the program of an earlier agent's
    /// attachment.
    pub(crate) fn attach_tc(
        &self,
        program: BorrowedFd<'_>,
        interface: &Interface,
    ) -> Result<Attachment, Error> {
        let pin = Kind::Tcx.pin(&self.dir, interface);
        if adopt(&pin, program, interface)? {
            return Ok(Attachment::Adopted);
        }
        match sys::link_create(program, interface.index, libbpf_sys::BPF_TCX_INGRESS, 0) {
            Ok(link) => {
                sys::pin(link.as_fd(), &pin).map_err(Error::system(format!("pin {}", pin.display())))?;
                Ok(Attachment::Tcx)
            }
            Err(error) => {
                tracing::info!(interface = interface.name, %error, "cannot attach by tcx, which Linux has since 6.6; using clsact");
                self.attach_clsact(program, interface)
            }
        }
    }

    fn attach_clsact(&self, program: BorrowedFd<'_>, interface: &Interface) -> Result<Attachment, Error> {
        let what = format!("attach the classifier to {}", interface.name);
        let mut hook = self.clsact_hook(program, interface);
        hook.create().map_err(Error::bpf(what.clone()))?;
        let pin = Kind::Cls.pin(&self.dir, interface);
        if self.priority == TC_PRIORITY_SHARED && !pin.exists() && hook.query().is_ok() {
            // Another program's filter, which must not be replaced.
            return Err(Error::Occupied(interface.name.clone()));
        }
        hook.attach().map_err(Error::bpf(what))?;
        let adopted = unpin(&pin)?;
        sys::pin(program, &pin).map_err(Error::system(format!("pin {}", pin.display())))?;
        Ok(if adopted { Attachment::Adopted } else { Attachment::Clsact })
    }

    fn clsact_hook(&self, program: BorrowedFd<'_>, interface: &Interface) -> TcHook {
        let mut builder = TcHookBuilder::new(program);
        let index = i32::try_from(interface.index).expect("the kernel's interface numbers are positive ints");
        builder.ifindex(index).replace(true).handle(TC_HANDLE).priority(self.priority);
        builder.hook(TC_INGRESS)
    }

    /// Detaches all programs that are pinned for the interface, XDP and TC. Returns whether there were any.
    pub(crate) fn detach(&self, interface: &Interface) -> Result<bool, Error> {
        let mut found = false;
        for kind in Kind::ALL {
            found |= self.detach_kind(kind, interface)?;
        }
        Ok(found)
    }

    fn detach_kind(&self, kind: Kind, interface: &Interface) -> Result<bool, Error> {
        let pin = kind.pin(&self.dir, interface);
        let object = match sys::open_pinned(&pin) {
            Ok(object) => object,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::system(format!("open {}", pin.display()))(error)),
        };
        match kind {
            Kind::Xdp | Kind::Tcx => sys::link_detach(object.as_fd())
                .map_err(Error::system(format!("detach {}", pin.display())))?,
            Kind::Cls => {
                // The kernel removes the filter with its interface, so this fails only if both are deleted.
                if let Err(error) = self.clsact_hook(object.as_fd(), interface).detach() {
                    tracing::debug!(interface = interface.name, %error, "no classifier to detach");
                }
            }
        }
        unpin(&pin)
    }

    /// Lists the interfaces that have pins, sorted.
    pub(crate) fn attached(&self) -> Result<Vec<Interface>, Error> {
        let mut interfaces: Vec<_> = self.list_pins()?.into_iter().map(|(_, interface)| interface).collect();
        interfaces.sort();
        interfaces.dedup();
        Ok(interfaces)
    }

    /// Removes the pins of deleted interfaces.
    pub(crate) fn remove_stale_pins(&self) -> Result<(), Error> {
        for (kind, interface) in self.list_pins()? {
            let pin = kind.pin(&self.dir, &interface);
            let is_stale = match kind {
                Kind::Xdp | Kind::Tcx => sys::open_pinned(&pin)
                    .and_then(|link| sys::link_info(link.as_fd()))
                    .map_or(true, |info| info.ifindex != interface.index),
                Kind::Cls => !exists(interface.index),
            };
            if is_stale {
                tracing::info!(interface = interface.name, "removing the pin of a deleted interface");
                unpin(&pin)?;
            }
        }
        Ok(())
    }

    fn list_pins(&self) -> Result<Vec<(Kind, Interface)>, Error> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::system(format!("list {}", self.dir.display()))(error)),
        };
        Ok(entries.filter_map(|entry| Kind::parse(entry.ok()?.file_name().to_str()?)).collect())
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Replaces the program of the link pinned at `pin`. Returns false if there is no such link, or its
/// interface was deleted.
fn adopt(pin: &Path, program: BorrowedFd<'_>, interface: &Interface) -> Result<bool, Error> {
    let link = match sys::open_pinned(pin) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Error::system(format!("open {}", pin.display()))(error)),
    };
    let info =
        sys::link_info(link.as_fd()).map_err(Error::system(format!("read the link {}", pin.display())))?;
    if info.ifindex != interface.index {
        unpin(pin)?;
        return Ok(false);
    }
    sys::link_update(link.as_fd(), program)
        .map_err(Error::system(format!("replace the program of {}", pin.display())))?;
    Ok(true)
}

/// Whether an interface has this index. An interface that was renamed keeps it, and its filters.
fn exists(index: u32) -> bool {
    // Without an interface, the library returns an empty name instead of an error.
    nix::net::if_::if_indextoname(index).is_ok_and(|name| !name.is_empty())
}

/// Removes a pin. Returns whether it existed.
fn unpin(pin: &Path) -> Result<bool, Error> {
    match fs::remove_file(pin) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::system(format!("remove {}", pin.display()))(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_interface_name_can_be_read_back_from_its_pin() {
        for name in ["eth0", "eth0.100", "a-b-c", "~1", "x~.~0", "."] {
            let interface = Interface { index: 42, name: name.to_owned() };
            for kind in Kind::ALL {
                let pin = kind.pin(Path::new("/links"), &interface);
                let file = pin.file_name().unwrap().to_str().unwrap();
                assert!(!file.contains('.'), "{file}");
                assert_eq!(Kind::parse(file), Some((kind, interface.clone())));
            }
        }
        for invalid in ["", "xdp", "xdp-", "xdp-x-eth0", "foo-1-eth0"] {
            assert_eq!(Kind::parse(invalid), None, "{invalid}");
        }
    }

    /// Catches the replacement of another program's filter on an interface that is not Sluice's alone.
    #[test]
    fn another_filter_on_a_shared_interface_is_an_error() {
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            crate::kernel::mount_bpffs().unwrap();
            let dir = Path::new(crate::kernel::BPFFS).join(format!("sluice-other-{}", std::process::id()));
            let [theirs, ours] =
                ["theirs", "ours"].map(|name| Links { dir: dir.join(name), priority: TC_PRIORITY_SHARED });
            [&theirs, &ours].iter().for_each(|links| links.prepare().unwrap());
            let ip = "link add u0 type veth peer name t0";
            assert!(Command::new("ip").args(ip.split(' ')).status().unwrap().success());
            let interface = Interface::by_name("u0").unwrap();
            let settings = crate::Settings { object: crate::ObjectName::Vswitch, cells: 4096, pin_dir: None };
            let datapath = crate::Datapath::load(&settings).unwrap();
            let program = datapath.program("underlay_ingress").unwrap();
            theirs.attach_clsact(program.as_fd(), &interface).unwrap();
            let refused = ours.attach_clsact(program.as_fd(), &interface).unwrap_err();
            assert!(matches!(&refused, Error::Occupied(name) if name == "u0"), "{refused}");
            assert!(theirs.detach(&interface).unwrap());
            ours.attach_clsact(program.as_fd(), &interface).unwrap();
            ours.detach(&interface).unwrap();
            fs::remove_dir_all(&dir).unwrap();
        };
        std::thread::spawn(test).join().unwrap();
    }

    /// Kernels before 6.6 need clsact; the test uses it on every kernel.
    #[test]
    fn clsact_is_replaced_in_place_and_removed() {
        let test = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            crate::kernel::mount_bpffs().unwrap();
            let dir = Path::new(crate::kernel::BPFFS).join(format!("sluice-cls-{}", std::process::id()));
            let links = Links { dir: dir.clone(), priority: TC_PRIORITY };
            links.prepare().unwrap();
            let ip = "link add u0 type veth peer name t0";
            assert!(Command::new("ip").args(ip.split(' ')).status().unwrap().success());
            let interface = Interface::by_name("u0").unwrap();
            let settings = crate::Settings { object: crate::ObjectName::Vswitch, cells: 4096, pin_dir: None };
            for expected in [Attachment::Clsact, Attachment::Adopted] {
                let datapath = crate::Datapath::load(&settings).unwrap();
                let program = datapath.program("port_ingress").unwrap();
                assert_eq!(links.attach_clsact(program.as_fd(), &interface).unwrap(), expected);
                let mut hook = links.clsact_hook(program.as_fd(), &interface);
                let id = libbpf_rs::Program::id_from_fd(program.as_fd()).unwrap();
                assert_eq!(hook.query().unwrap(), id, "the newest program runs");
            }
            assert_eq!(links.attached().unwrap(), std::slice::from_ref(&interface));
            assert!(links.detach(&interface).unwrap());
            assert!(links.attached().unwrap().is_empty());
            // A renamed interface still has its filter, a removed one has none.
            let datapath = crate::Datapath::load(&settings).unwrap();
            links.attach_clsact(datapath.program("port_ingress").unwrap().as_fd(), &interface).unwrap();
            for (ip, left) in [("link set u0 name u1", 1), ("link del u1", 0)] {
                assert!(Command::new("ip").args(ip.split(' ')).status().unwrap().success());
                links.remove_stale_pins().unwrap();
                assert_eq!(links.attached().unwrap().len(), left, "{ip}");
            }
            fs::remove_dir(&dir).unwrap();
        };
        std::thread::spawn(test).join().unwrap();
    }
}
