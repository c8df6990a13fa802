//! Command line options that gateways and hosts share. This file changes when such an option is added.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::Error;
use crate::health::Limits;
use crate::health::echo::HEALTH_PORT;

/// Size of a cell in bytes, as a power of two.
const CELL_SHIFT: u32 = 6;

/// Options that gateways and hosts share.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// Enrollment file that the controller issued; needed until the state directory holds a certificate
    #[arg(long, value_name = "FILE")]
    pub enrollment: Option<PathBuf>,

    /// Directory for this node's key, certificate and state
    #[arg(long, value_name = "DIR", required_unless_present = "flush")]
    pub state_dir: Option<PathBuf>,

    /// Memory for the forwarding tables, in MiB; reserved at the first start and kept until --flush
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub table_memory_mib: u32,

    /// Directory on the BPF file system for this node's programs and tables [default:
    /// /sys/fs/bpf/sluice/ROLE]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,

    /// Unix socket of the local API [default: /run/sluice/ROLE.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,

    /// UDP port of RSP, the protocol by which hosts learn direct paths; must be the same on all nodes of a
    /// site
    #[arg(long, value_name = "PORT", default_value_t = sluice_rsp::RSP_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub rsp_port: u16,

    /// UDP port of the echo by which nodes check the way between them; must be the same on all nodes of a site
    #[arg(long, value_name = "PORT", default_value_t = HEALTH_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub health_port: u16,

    /// Seconds between two probes of another node, on average
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=30))]
    pub health_link_s: u64,

    /// Part of its time that a processor may spend with packets, in software interrupts; from more on, and if it drops packets or
    /// leaves them for later, the health checks find an overload
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub health_softirq_percent: u64,

    /// Times in a second from which on a processor that is so busy and leaves packets for later is overloaded; 0: it is
    /// overloaded even if it does not
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub health_squeezes: u64,

    /// Remove the programs, tables and devices that an agent has left in place, restore the settings of
    /// interfaces that it has changed, then exit
    #[arg(long)]
    pub flush: bool,
}

impl CommonArgs {
    /// Thresholds of the health checks.
    #[must_use]
    pub fn health_limits(&self) -> Limits {
        Limits { softirq_permille: self.health_softirq_percent * 10, squeezed: self.health_squeezes }
    }

    /// Number of cells in the tables.
    #[must_use]
    pub fn cells(&self) -> u32 {
        // 16 GiB are 2^28 cells: the range of the option keeps this within 32 bits.
        self.table_memory_mib << (20 - CELL_SHIFT)
    }

    /// Checks that VXLAN, RSP, the echo of health checks and the `others` use different UDP ports.
    ///
    /// # Errors
    /// If a port is used twice.
    pub fn check_ports(&self, others: &[u16]) -> Result<(), Error> {
        let mut ports = vec![sluice_types::VXLAN_PORT, self.rsp_port, self.health_port];
        ports.extend(others);
        ports.sort_unstable();
        match ports.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::Config(format!(
                "UDP port {} is used twice: VXLAN uses {}, and --rsp-port, --health-port, --cluster-port, --nat-sync-port, \
                 --meter-port and --migration-port must differ from it and from each other",
                pair[0],
                sluice_types::VXLAN_PORT
            ))),
            None => Ok(()),
        }
    }

    /// Directory in which programs and maps are pinned.
    #[must_use]
    pub fn pin_dir(&self, role: &str) -> PathBuf {
        self.pin_dir.clone().unwrap_or_else(|| PathBuf::from("/sys/fs/bpf/sluice").join(role))
    }

    /// Path of the local API's socket.
    #[must_use]
    pub fn socket(&self, role: &str) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| PathBuf::from(format!("/run/sluice/{role}.sock")))
    }

    /// The state directory, created if it is absent.
    ///
    /// # Errors
    /// If it was not given or cannot be created.
    pub fn state_dir(&self) -> Result<PathBuf, Error> {
        let dir =
            self.state_dir.clone().ok_or_else(|| Error::Config("--state-dir is required".to_owned()))?;
        std::fs::create_dir_all(&dir).map_err(Error::io(format!("create {}", dir.display())))?;
        Ok(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        common: CommonArgs,
    }

    fn args(line: &[&str]) -> CommonArgs {
        let line = ["agent", "--state-dir", "/nonexistent"].iter().chain(line);
        Cli::parse_from(line).common
    }

    /// Catches a protocol that is left out of the comparison.
    #[test]
    fn each_protocol_needs_its_own_port() {
        let default = args(&[]);
        assert!(default.check_ports(&[]).is_ok());
        assert!(default.check_ports(&[sluice_rsp::RSP_PORT + 1]).is_ok());
        assert!(default.check_ports(&[sluice_rsp::RSP_PORT]).is_err());
        assert!(default.check_ports(&[HEALTH_PORT]).is_err());
        assert!(default.check_ports(&[sluice_types::VXLAN_PORT]).is_err());
        let error = args(&["--rsp-port", "4789"]).check_ports(&[]).unwrap_err().to_string();
        assert!(error.contains("UDP port 4789 is used twice"), "{error}");
    }

    #[test]
    fn table_memory_is_counted_in_cells_of_64_bytes() {
        assert_eq!(args(&["--table-memory-mib", "1"]).cells() * 64, 1 << 20);
        assert_eq!(args(&["--table-memory-mib", "16384"]).cells(), 1 << 28);
    }
}
