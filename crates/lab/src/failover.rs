//! Gateways of a lab that fail as machines do, with their interfaces, and the demonstration that a download goes on.

use crate::error::{Error, IoContext, Result};
use crate::exec::{script, succeed};
use crate::internet::{self, EXCHANGE, ISP, LARGE_FILE, LARGE_FILE_BYTES};
use crate::lab::Lab;
use crate::output::print_text;
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The upstream router sends slowly meanwhile, so that the download takes 4 s. A limit of `curl` does not hold in the first second.
const SLOW: &str = "tc qdisc add dev ix0 root tbf rate 16mbit burst 32k latency 200ms";
const FAST: &str = "tc qdisc del dev ix0 root";
/// From its beginning to the death of the gateway.
const BEFORE: Duration = Duration::from_secs(1);
/// From the start of an agent until its tables are synchronized.
const BACK: Duration = Duration::from_secs(30);

impl Lab {
    /// Number of the gateway to which the upstream router sends packets for a public address: by its neighbor entry, and the
    /// port of the switch behind which the MAC address is.
    ///
    /// # Errors
    /// [`Error::Form`] if the router has no neighbor entry, or the switch does not know the address.
    pub async fn owner_of_public(&self, public: IpAddr) -> Result<usize> {
        let unknown = |problem: String| Error::Form { what: format!("the owner of {public}"), problem };
        let neighbors = self.list(ISP, &["ip", "-j", "neigh", "show", &public.to_string()]).await?;
        let mac = neighbors.first().map(|neighbor| &neighbor["lladdr"]);
        let mac = mac.ok_or_else(|| unknown(format!("{ISP} has no neighbor entry")))?;
        let learned = self.list(EXCHANGE, &["bridge", "-j", "fdb", "show", "br", "br0"]).await?;
        let port =
            learned.iter().find(|entry| &entry["mac"] == mac).and_then(|entry| entry["ifname"].as_str());
        let number = port.and_then(|port| port.strip_prefix("gw")).and_then(|number| number.parse().ok());
        number.ok_or_else(|| unknown(format!("{EXCHANGE} does not know {mac}")))
    }

    /// Disconnects the gateway with this number from the underlay and the Internet, at the switches, or connects it again.
    ///
    /// # Errors
    /// If a command fails.
    pub async fn connect_gateway(&self, number: usize, connected: bool) -> Result<()> {
        let switch = self.state.topology.gateways[number].switch.as_str();
        let state = if connected { "up" } else { "down" };
        for (place, port) in [(switch, format!("p{number}")), (EXCHANGE, format!("gw{number}"))] {
            let what = format!("setting {port} of {place} {state}");
            script(&self.paths, place, &what, &format!("ip link set {port} {state}\n")).await?;
        }
        Ok(())
    }

    /// The list of objects that a command prints.
    async fn list(&self, place: &str, argv: &[&str]) -> Result<Vec<Value>> {
        let text = succeed(&argv.join(" "), self.exec(place, argv).await?)?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Form { what: argv.join(" "), problem: error.to_string() })
    }

    /// A VM without a public address downloads a file, and the gateway that translates it dies meanwhile. True if the file is
    /// complete. The gateway is back in any case, if that is possible.
    pub(crate) async fn show_failover(&self) -> Result<bool> {
        let topology = &self.state.topology;
        let behind_nat = topology.vpcs.iter().find_map(|vpc| {
            let vm = self.state.vms.values().find(|vm| vpc.internet && vm.vpc == vpc.name)?;
            Some((vm.machine.clone(), *vpc.nat.first()?))
        });
        let (Some((vm, public)), true) = (behind_nat, topology.gateways.len() > 1) else { return Ok(true) };
        let victim = OnceLock::new();
        script(&self.paths, ISP, "limiting the rate of the download", SLOW).await?;
        let shown = self.download_while_owner_dies(&vm, public.into(), &victim).await;
        let fast = script(&self.paths, ISP, "removing the limit of the download", FAST).await;
        let back = match victim.get() {
            Some(victim) => self.bring_back(*victim).await,
            None => Ok(()),
        };
        let well = shown?;
        fast?;
        back?;
        Ok(well)
    }

    /// Downloads the file, and cuts off and kills the gateway that owns the public address. `victim` gets its number before. True
    /// if the file is complete.
    async fn download_while_owner_dies(
        &self,
        vm: &str,
        public: IpAddr,
        victim: &OnceLock<usize>,
    ) -> Result<bool> {
        let url = internet::page(false) + LARGE_FILE;
        let copy = self.paths.root().join("vms").join(format!("{vm}.download"));
        let file = copy.display().to_string();
        let argv = ["curl", "-sS", "--noproxy", "*", "--max-time", "30", "-o", &file, &url];
        let download = async { Ok::<_, Error>((self.exec(vm, &argv).await?, Instant::now())) };
        let die = async {
            sleep(BEFORE).await;
            let number = self.owner_of_public(public).await?;
            victim.get_or_init(|| number);
            let name = &self.state.topology.gateways[number].name;
            self.connect_gateway(number, false).await?;
            let died = Instant::now();
            self.kill(name).await?;
            print_text(&format!(
                "A gateway dies: {name}, which translates {vm} to {public}, is cut off and killed during a download\n"
            ))?;
            Ok::<_, Error>(died)
        };
        // Not until the first error: the gateway would be left half dead.
        let (downloaded, died) = tokio::join!(download, die);
        let ((output, ended), died) = (downloaded?, died?);
        let text = if !output.status.success() {
            String::from_utf8_lossy(&output.stderr).trim().to_owned()
        } else if fs::read(&copy).context("cannot read", &copy)?
            != fs::read(self.paths.web_root().join(LARGE_FILE)).context("cannot read", LARGE_FILE)?
        {
            "the file is damaged".to_owned()
        } else if ended < died {
            "the download had ended before".to_owned()
        } else {
            String::new()
        };
        let well = text.is_empty();
        let whole = format!("{vm} gets all {LARGE_FILE_BYTES} bytes of {url} by the same connection");
        print_text(&format!("  {}\n", if well { whole } else { format!("{vm}: {url}: {text}") }))?;
        Ok(well)
    }

    /// Connects a gateway again, starts it if it does not run, and waits until it is synchronized.
    async fn bring_back(&self, number: usize) -> Result<()> {
        let connected = self.connect_gateway(number, true).await;
        let name = &self.state.topology.gateways[number].name;
        if !self.process(name)?.is_alive() {
            self.restart(name)?;
        }
        connected?;
        self.synchronized(name, BACK).await?;
        print_text(&format!("  {name} is back\n"))
    }
}
