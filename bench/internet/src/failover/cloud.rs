//! The lab whose NAT gateway fails: a cluster of three gateways, VMs behind two hosts, and remote endpoints behind a router of the
//! Internet. It changes with how gateways of a lab fail and come back.

use super::Side;
use super::load::Place;
use super::remote::Remote;
use sluice_bench_report::shell::{Failure, run};
use sluice_client::{Cluster, Gateway, NatGateway};
use sluice_lab::internet::{FAR, ISP, WEB, web_address};
use sluice_lab::{Lab, Options, Topology};
use sluice_types::NAT_SESSIONS_MAX;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, Instant};

const NAME: &str = "benchnat";
const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 128);
const VMS: [&str; 2] = ["shop-1", "shop-2"];
/// A gateway that starts with no tables needs its entries, its vIPs return one by one, and copies of all sessions come.
const BACK_MAX: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// The lab, and the gateway that is dead.
pub struct Cloud {
    lab: Lab,
    dead: Option<usize>,
    _remote: Remote,
}

/// Starts the lab for `work`, and removes it whatever the result is.
///
/// # Errors
/// Errors of the lab and of `work`.
pub fn with_cloud<T>(
    binary: &Path,
    hello_ms: u16,
    work: impl AsyncFnOnce(&mut Cloud) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut options = Options::standard(NAME, binary)?;
        options.topology = Topology::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("lab.yaml"))?;
        options.topology.cluster.hello_interval_ms = Some(hello_ms);
        let outcome = match Lab::up(options).await {
            Ok(lab) => match Cloud::new(lab).await {
                Ok(mut cloud) => work(&mut cloud).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error.into()),
        };
        sluice_lab::down(NAME).await?;
        outcome
    })
}

impl Cloud {
    async fn new(lab: Lab) -> Result<Self, Failure> {
        let nat = lab.api().find::<NatGateway>("shop", &[]).await?.id;
        let many = serde_json::json!({ "sessions": NAT_SESSIONS_MAX });
        lab.api().update::<NatGateway>(nat, &many, None).await?;
        lab.api().wait_programmed::<NatGateway>(nat, BACK_MAX).await?;
        run(&format!("ip -n {} route add 100.64.0.0/10 via 198.51.100.66", lab.paths().namespace(ISP)))?;
        let [far, isp] = [FAR, ISP].map(|place| lab.paths().namespace_file(place));
        let remote = Remote::start((&far, "isp0"), (&isp, "far0"))?;
        let mut cloud = Self { lab, dead: None, _remote: remote };
        cloud.ready().await?;
        Ok(cloud)
    }

    async fn owner(&self) -> Result<usize, Failure> {
        Ok(self.lab.owner_of_public(PUBLIC.into()).await?)
    }

    fn name_of(&self, gateway: usize) -> String {
        self.lab.state().topology.gateways[gateway].name.clone()
    }

    /// Lets the owner hand over what it owns, and waits until the public address is at another gateway. Returns the owner.
    ///
    /// # Errors
    /// If it stays.
    pub async fn drain_owner(&self) -> Result<usize, Failure> {
        let owner = self.owner().await?;
        let id = self.lab.api().find::<Gateway>(&self.name_of(owner), &[]).await?.id;
        self.lab.api().drain(id, true, None).await?;
        self.until(async || Ok(self.owner().await? != owner), "the drained gateway keeps the address")
            .await?;
        Ok(owner)
    }

    /// Ends the drain, and waits until all gateways have their vIPs, and copies of what the others own.
    ///
    /// # Errors
    /// If they do not return.
    pub async fn undrain(&self, owner: usize) -> Result<(), Failure> {
        let id = self.lab.api().find::<Gateway>(&self.name_of(owner), &[]).await?.id;
        self.lab.api().drain(id, false, None).await?;
        self.settled().await
    }

    /// Waits until all gateways have their vIPs, and copies of what the others own.
    ///
    /// # Errors
    /// If they do not.
    pub async fn settled(&self) -> Result<(), Failure> {
        let name = &self.lab.state().topology.cluster.name;
        let is_settled = async || {
            let vips = self.lab.api().find::<Cluster>(name, &[]).await?.vips;
            Ok(vips.iter().all(|vip| vip.owner == vip.preferred_owner) && self.is_whole().await?)
        };
        self.until(is_settled, "not all vIPs have returned to their gateways").await
    }

    async fn until(
        &self,
        done: impl AsyncFn() -> Result<bool, Failure>,
        problem: &str,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        while !done().await? {
            if begun.elapsed() > BACK_MAX {
                return Err(format!("{problem} within {BACK_MAX:?}").into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Whether each gateway is ready, one owns the NAT gateway, and all others have copies of all its sessions.
    async fn is_whole(&self) -> Result<bool, Failure> {
        let gateways = self.lab.api().list::<Gateway>(&[], None).await?;
        if gateways.iter().any(|gateway| gateway.state != "ready") {
            return Ok(false);
        }
        let (mut owned, mut complete) = (0.0, 0.0);
        for gateway in &gateways {
            // An agent that is starting answers nothing.
            let Ok(metrics) = self.lab.metrics(&gateway.name).await else { return Ok(false) };
            owned += metrics.sum("sluice_nat_gateways_owned", &[]);
            complete += metrics.sum("sluice_nat_copies_complete", &[]);
        }
        Ok(owned == 1.0 && complete + 1.0 == gateways.len() as f64)
    }
}

impl Side for Cloud {
    fn places(&self) -> Vec<Place> {
        let place = |vm: &str| Place {
            namespace: self.lab.paths().namespace_file(vm),
            from: SocketAddrV4::new(self.lab.state().vms[vm].ipv4.unwrap_or(Ipv4Addr::UNSPECIFIED), 0),
        };
        VMS.iter().map(|vm| place(vm)).collect()
    }

    fn server(&self) -> (String, Ipv4Addr) {
        let address = match web_address(false) {
            std::net::IpAddr::V4(address) => address,
            std::net::IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        (self.lab.paths().namespace(WEB), address)
    }

    async fn ready(&mut self) -> Result<(), Failure> {
        self.until(async || self.is_whole().await, "not all gateways have copies of all sessions").await
    }

    async fn kill(&mut self) -> Result<Instant, Failure> {
        let owner = self.owner().await?;
        let name = self.name_of(owner);
        let killed = Instant::now();
        self.lab.connect_gateway(owner, false).await?;
        self.dead = Some(owner);
        self.lab.kill(&name).await?;
        // Without its pins, no program and no table stays.
        std::fs::remove_dir_all(self.lab.paths().pin_dir(&name))?;
        Ok(killed)
    }

    async fn bring_back(&mut self) -> Result<(), Failure> {
        if let Some(dead) = self.dead.take() {
            self.lab.connect_gateway(dead, true).await?;
            let name = self.name_of(dead);
            self.lab.restart(&name)?;
            self.lab.synchronized(&name, BACK_MAX).await?;
        }
        self.ready().await
    }
    fn keep_logs(&self, kill: usize) -> Result<(), Failure> {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../out/internet-logs/kill-{kill}"));
        std::fs::create_dir_all(&kept)?;
        for gateway in &self.lab.state().topology.gateways {
            std::fs::copy(self.lab.paths().log(&gateway.name), kept.join(format!("{}.log", gateway.name)))?;
        }
        eprintln!("bench-internet: the logs of the gateways are in {}", kept.display());
        Ok(())
    }
}
