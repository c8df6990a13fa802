//! What every node agent is told on its command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::Error;

/// Bytes of a cell, as a power of two.
const CELL_SHIFT: u32 = 6;

/// Options that gateways and hosts share.
#[derive(Args, Clone, Debug)]
pub struct CommonArgs {
    /// Enrolment file that the controller issued; needed once, until the state directory holds a certificate
    #[arg(long, value_name = "FILE")]
    pub enrolment: Option<PathBuf>,

    /// Directory for this node's key, certificate and state
    #[arg(long, value_name = "DIR", required_unless_present = "flush")]
    pub state_dir: Option<PathBuf>,

    /// Memory for the forwarding tables, in MiB; reserved at the first start, kept until --flush
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub table_memory_mib: u32,

    /// Directory on the BPF file system for this node's programs and tables [default: /sys/fs/bpf/sluice/ROLE]
    #[arg(long, value_name = "DIR")]
    pub pin_dir: Option<PathBuf>,

    /// Unix socket of the local API [default: /run/sluice/ROLE.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Serve Prometheus metrics at this address
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,

    /// UDP port of RSP, by which hosts learn direct paths; the same on all nodes of a site
    #[arg(long, value_name = "PORT", default_value_t = sluice_rsp::RSP_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub rsp_port: u16,

    /// Remove what this node left pinned (programs, tables, devices), then exit
    #[arg(long)]
    pub flush: bool,
}

impl CommonArgs {
    /// The tables' size.
    #[must_use]
    pub fn cells(&self) -> u32 {
        // 16 GiB is 2^28 cells: the argument's range keeps this within 32 bits.
        self.table_memory_mib << (20 - CELL_SHIFT)
    }

    /// That RSP and what else this node listens to have ports of their own.
    ///
    /// # Errors
    /// Which one is given twice.
    pub fn check_ports(&self, others: &[u16]) -> Result<(), Error> {
        let mut ports = vec![sluice_types::VXLAN_PORT, self.rsp_port];
        ports.extend(others);
        ports.sort_unstable();
        match ports.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::Config(format!(
                "UDP port {} is given twice: VXLAN has {}, and RSP and the cluster need others",
                pair[0],
                sluice_types::VXLAN_PORT
            ))),
            None => Ok(()),
        }
    }

    /// Where programs and maps are pinned.
    #[must_use]
    pub fn pin_dir(&self, role: &str) -> PathBuf {
        self.pin_dir.clone().unwrap_or_else(|| PathBuf::from("/sys/fs/bpf/sluice").join(role))
    }

    /// Where the local API listens.
    #[must_use]
    pub fn socket(&self, role: &str) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| PathBuf::from(format!("/run/sluice/{role}.sock")))
    }

    /// The state directory, made if it is absent.
    ///
    /// # Errors
    /// If it was not given or cannot be made.
    pub fn state_dir(&self) -> Result<PathBuf, Error> {
        let dir = self.state_dir.clone().ok_or_else(|| Error::Config("--state-dir is needed".to_owned()))?;
        std::fs::create_dir_all(&dir).map_err(Error::io(format!("make {}", dir.display())))?;
        Ok(dir)
    }
}
