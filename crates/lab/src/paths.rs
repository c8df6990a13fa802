//! File names, directories and other names of a lab.

use crate::error::{Error, Result};
use std::path::PathBuf;

/// The lab that commands use unless --name names another.
pub(crate) const DEFAULT_NAME: &str = "lab";

const ROOT: &str = "/run/sluice-lab";
const PINS: &str = "/sys/fs/bpf/sluice";
const NAME_LENGTH_MAX: usize = 12;

/// Files and names of one lab. Namespaces and pins begin with `sl-NAME-`. NAME has no hyphen, so no lab's prefix
/// begins another's.
#[derive(Clone, Debug)]
pub struct Paths {
    name: String,
}

impl Paths {
    /// The paths of a lab; checks its name.
    ///
    /// # Errors
    /// [`Error::BadName`].
    pub fn new(name: &str) -> Result<Self> {
        let shape = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !shape || name.len() > NAME_LENGTH_MAX {
            return Err(Error::BadName(name.to_owned()));
        }
        Ok(Self { name: name.to_owned() })
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Directory of all labs.
    pub fn labs() -> PathBuf {
        PathBuf::from(ROOT)
    }

    /// The lab's directory.
    pub fn root(&self) -> PathBuf {
        Self::labs().join(&self.name)
    }

    /// File with the state of the lab.
    pub fn state(&self) -> PathBuf {
        self.root().join("lab.json")
    }

    /// Log file of a process.
    pub fn log(&self, process: &str) -> PathBuf {
        self.root().join("logs").join(format!("{process}.log"))
    }

    /// Directory of the processes' records.
    pub fn processes(&self) -> PathBuf {
        self.root().join("processes")
    }

    /// State directory of the controller or of a node's agent.
    pub fn state_dir(&self, process: &str) -> PathBuf {
        self.root().join("nodes").join(process)
    }

    /// A node's enrollment bundle, used once.
    pub fn enrollment(&self, node: &str) -> PathBuf {
        self.root().join("nodes").join(format!("{node}.enrollment.json"))
    }

    /// A node agent's local socket.
    pub fn socket(&self, node: &str) -> PathBuf {
        self.state_dir(node).join("agent.sock")
    }

    /// The API's token.
    pub fn token(&self) -> PathBuf {
        self.root().join("api.token")
    }

    /// File with the answer that the DHCP client of a VM got.
    pub fn lease(&self, vm: &str) -> PathBuf {
        self.root().join("vms").join(format!("{vm}.lease"))
    }

    /// File in which the DHCPv6 client of a VM keeps its leases.
    pub fn lease6(&self, vm: &str) -> PathBuf {
        self.root().join("vms").join(format!("dhclient-{vm}.leases"))
    }

    /// The initial file system of guests of QEMU.
    pub(crate) fn guest_image(&self) -> PathBuf {
        self.root().join("guest.img")
    }

    /// Socket of QEMU's monitor of a guest.
    pub(crate) fn guest_monitor(&self, guest: &str) -> PathBuf {
        self.root().join("vms").join(format!("{guest}.monitor"))
    }

    /// Socket of the QMP monitor of a guest.
    pub(crate) fn guest_qmp(&self, guest: &str) -> PathBuf {
        self.root().join("vms").join(format!("{guest}.qmp"))
    }

    /// Socket by which one QEMU sends a guest to another one.
    pub(crate) fn guest_migration(&self, guest: &str) -> PathBuf {
        self.root().join("vms").join(format!("{guest}.migration"))
    }

    /// Socket of a channel by which commands run in a guest.
    pub(crate) fn guest_channel(&self, guest: &str, number: usize) -> PathBuf {
        self.root().join("vms").join(format!("{guest}.channel{number}.sock"))
    }

    /// Directory that the web server of the Internet serves.
    pub fn web_root(&self) -> PathBuf {
        self.root().join("web")
    }

    /// The eBPF object of the switches' ports.
    pub fn switch_port(&self) -> PathBuf {
        self.root().join("switch_port.bpf.o")
    }

    /// Prefix of all the lab's namespaces.
    pub fn namespace_prefix(&self) -> String {
        format!("sl-{}-", self.name)
    }

    /// The namespace of a node, switch or VM.
    pub fn namespace(&self, place: &str) -> String {
        self.namespace_prefix() + place
    }

    /// The file that holds a namespace.
    pub fn namespace_file(&self, place: &str) -> PathBuf {
        PathBuf::from("/run/netns").join(self.namespace(place))
    }

    /// Directory on bpffs below which all nodes of all labs pin their maps and programs.
    pub fn pins() -> PathBuf {
        PathBuf::from(PINS)
    }

    /// Where a node's agent pins its maps and programs.
    pub fn pin_dir(&self, node: &str) -> PathBuf {
        Self::pins().join(self.namespace(node))
    }

    /// MAC address that marks the management bridge as one of this lab: it is the only field of a bridge that
    /// can be set in the step that creates it.
    pub fn bridge_mac(&self) -> String {
        let hash = self.name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        sluice_types::MacAddr::local(hash & 0xff_ffff_ffff).to_string()
    }
}

/// Name of the management bridge with an index.
pub(crate) fn bridge(index: u16) -> String {
    format!("slm{index}")
}

/// A host address in the management network with an index.
pub(crate) fn management(index: u16, host: u8) -> std::net::Ipv4Addr {
    let [high, low] = index.to_be_bytes();
    std::net::Ipv4Addr::new(198, 18 + (high & 1), low, host)
}

/// Number of management networks: /24s of 198.18.0.0/15.
pub(crate) const MANAGEMENT_NETWORKS: u16 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for bad in ["", "Lab", "a-b", "1a", "a/b", "abcdefghijklm", ".."] {
            assert!(Paths::new(bad).unwrap_err().to_string().contains(bad), "{bad}");
        }
        assert_eq!(Paths::new("t42").unwrap().namespace("gw-a"), "sl-t42-gw-a");
    }

    #[test]
    fn marks_and_networks_differ() {
        assert_ne!(Paths::new("a").unwrap().bridge_mac(), Paths::new("b").unwrap().bridge_mac());
        assert!(Paths::new("a").unwrap().bridge_mac().starts_with("02:"));
        assert_eq!(management(0, 1).to_string(), "198.18.0.1");
        assert_eq!(management(511, 10).to_string(), "198.19.255.10");
    }
}
