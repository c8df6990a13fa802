//! The output of `sluice lab`: the lab's state, and a demonstration that it works.

use crate::error::Result;
use crate::internet;
use crate::lab::{CONTROLLER, Lab, VmState};
use crate::output::print_text;
use crate::paths::DEFAULT_NAME;
use crate::places::NAMES;
use sluice_tables::drops;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Packets by (node, reason).
type Drops = BTreeMap<(String, String), f64>;

impl Lab {
    /// Addresses and files of the lab, as text for users.
    pub fn addresses_and_files(&self) -> String {
        let state = &self.state;
        let mut text = format!(
            "API      http://{}  (bearer token in {})\nCLI      SLUICE_API=http://{} SLUICE_TOKEN_FILE={} {} instances list\n",
            state.api,
            self.paths.token().display(),
            state.api,
            self.paths.token().display(),
            state.binary.display(),
        );
        let agent = self.paths.socket("NODE");
        text.push_str(&format!("agents   --socket {}\n", agent.display()));
        for (name, node) in &state.nodes {
            text.push_str(&format!("metrics  http://{}/metrics  ({name})\n", node.metrics));
        }
        text.push_str(&format!("logs     {}\n", self.paths.root().join("logs").display()));
        let vm = state.vms.keys().next().map_or("VM", String::as_str);
        let named =
            if state.name == DEFAULT_NAME { String::new() } else { format!(" --name {}", state.name) };
        text.push_str(&format!(
            "a shell  {} lab exec{named} {vm} sh   (in any VM or node)\n",
            state.binary.display()
        ));
        text
    }

    /// Processes and VMs, one per line; true if all are well.
    pub async fn status(&self) -> Result<(String, bool)> {
        let mut text = String::new();
        let mut well = self.state.ready;
        if !self.state.ready {
            text.push_str("the lab did not come up completely\n");
        }
        let nodes = self.api.nodes().await.unwrap_or_default();
        let internet = self.state.topology.internet.iter().flat_map(|_| [internet::WEB, NAMES]);
        let processes = std::iter::once(CONTROLLER).chain(self.state.nodes.keys().map(String::as_str));
        for name in processes.chain(internet) {
            let process = self.process(name).ok();
            let alive = process.as_ref().is_some_and(crate::process::Process::is_alive);
            let pid = process.map_or_else(|| "-".to_owned(), |process| process.pid.to_string());
            let id = self.state.nodes.get(name).map(|node| node.id.as_str());
            let status = nodes.iter().find(|status| Some(status.node.as_str()) == id);
            // A node that the controller does not know, or that is behind, forwards by outdated tables.
            well &= id.is_none()
                || status
                    .is_some_and(|status| status.connected && status.acknowledged_revision == status.current);
            let stream = status.map(|status| {
                let state = if status.connected { "connected" } else { "not connected" };
                format!("{state}, revision {} of {}", status.acknowledged_revision, status.current)
            });
            let (state, stream) = (if alive { "running" } else { "dead" }, stream.unwrap_or_default());
            text.push_str(&format!("{name:<20} {state:<8} pid {pid:<8} {stream}\n"));
            well &= alive;
        }
        for (name, vm) in &self.state.vms {
            let guest = self.is_guest(&vm.machine);
            let runs = || self.process(&vm.machine).is_ok_and(|qemu| qemu.is_alive());
            let there = if guest { runs() } else { self.paths.namespace_file(&vm.machine).exists() };
            let addresses: Vec<String> = vm.addresses().iter().map(IpAddr::to_string).collect();
            let state = if there { "up" } else { "gone" };
            text.push_str(&format!(
                "{name:<20} {state:<8} {} on {}, VPC {} (VNI {})\n",
                addresses.join(", "),
                vm.host,
                vm.vpc,
                vm.vni
            ));
            well &= there;
        }
        Ok((text, well))
    }

    /// Pings within a VPC across hosts, between peered VPCs, and between
    /// tenants, which must fail; fetches pages of the Internet, pings a VM from there, and lets a gateway die during a
    /// download. True if all results are as expected.
    ///
    /// # Errors
    /// Errors of running commands and of reading metrics.
    pub async fn demonstrate(&self) -> Result<bool> {
        let vms = &self.state.vms;
        let pairs = || vms.iter().flat_map(|a| vms.iter().map(move |b| (a, b)));
        let tenant = |vm: &VmState| {
            let vpc = self.state.topology.vpcs.iter().find(|vpc| vpc.name == vm.vpc);
            vpc.map_or("", |vpc| vpc.tenant.as_str())
        };
        let peered = |a: &VmState, b: &VmState| {
            let both = |vpcs: &[String; 2]| vpcs.contains(&a.vpc) && vpcs.contains(&b.vpc) && a.vpc != b.vpc;
            self.state.topology.peerings.iter().any(|peering| both(&peering.vpcs))
        };
        let reachable = |from: &VmState, to: &VmState| {
            vms.values().any(|vm| {
                (vm.vpc == from.vpc || peered(vm, from))
                    && vm.addresses().iter().any(|address| to.addresses().contains(address))
            })
        };
        let mut well = true;
        if let Some((a, b)) = pairs().find(|(a, b)| a.1.vpc == b.1.vpc && a.1.host != b.1.host) {
            well &= self.show_pings("Within a VPC, across hosts", a, b, true).await?;
        }
        if let Some((a, b)) = pairs().find(|(a, b)| peered(a.1, b.1) && a.1.host != b.1.host) {
            well &= self.show_pings("Between peered VPCs", a, b, true).await?;
        }
        let strangers = |a: &VmState, b: &VmState| tenant(a) != tenant(b) && !reachable(a, b);
        if let Some((a, b)) = pairs().find(|(a, b)| strangers(a.1, b.1)) {
            well &= self.show_pings("Between tenants (must be refused)", a, b, false).await?;
        }
        well &= self.show_pages().await?;
        well &= self.show_elastic().await?;
        Ok(well & self.show_failover().await?)
    }

    /// Fetches the page of the web server on the Internet, from every VM with a public address.
    async fn show_pages(&self) -> Result<bool> {
        let mut well = true;
        for eip in self.state.topology.internet.iter().flat_map(|internet| &internet.eips) {
            let url = internet::page(eip.address.is_ipv6());
            let argv = ["curl", "-sSg", "--noproxy", "*", "--max-time", "5", &url];
            let output = self.exec(&eip.vm, &argv).await?;
            let text = if output.status.success() { &output.stdout } else { &output.stderr };
            let (text, from) = (String::from_utf8_lossy(text), eip.address);
            print_text(&format!("To the Internet: {} ({from}) gets {url}: {}\n", eip.vm, text.trim()))?;
            well &= output.status.success();
        }
        Ok(well)
    }

    /// Pings a public address of each family from a machine on the Internet.
    async fn show_elastic(&self) -> Result<bool> {
        let mut well = true;
        let eips = || self.state.topology.internet.iter().flat_map(|internet| &internet.eips);
        for eip in
            [false, true].into_iter().filter_map(|ipv6| eips().find(|eip| eip.address.is_ipv6() == ipv6))
        {
            let address = eip.address.to_string();
            let argv = ["ping", "-n", "-c", "3", "-i", "0.2", "-W", "1", &address];
            let output = self.exec(internet::CLIENT, &argv).await?;
            let answered = output.status.success();
            let text = if answered { "answers" } else { "does not answer" };
            print_text(&format!("From the Internet: {} {text} {} at {address}\n", eip.vm, internet::CLIENT))?;
            well &= answered;
        }
        Ok(well)
    }

    async fn show_pings(
        &self,
        title: &str,
        from: (&String, &VmState),
        to: (&String, &VmState),
        expected: bool,
    ) -> Result<bool> {
        print_text(&format!("{title}: {} ({}) -> {} ({})\n", from.0, from.1.vpc, to.0, to.1.vpc))?;
        let mut well = true;
        for address in to.1.addresses() {
            let before = self.drops(from.1.vni).await?;
            let target = address.to_string();
            let output = self
                .exec(
                    &from.1.machine,
                    &["ping", "-n", "-I", &from.1.interface, "-c", "3", "-i", "0.2", "-W", "1", &target],
                )
                .await?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let summary: Vec<&str> = text
                .lines()
                .filter(|line| line.contains("packets transmitted") || line.starts_with("rtt"))
                .collect();
            let answered = output.status.success();
            print_text(&format!("  ping {target}: {}\n", summary.join("; ")))?;
            if !answered {
                let after = self.drops(from.1.vni).await?;
                print_text(&explain(&before, &after))?;
            }
            well &= answered == expected;
        }
        Ok(well)
    }

    /// Packets of a VNI that all nodes have dropped.
    async fn drops(&self, vni: u32) -> Result<Drops> {
        let mut drops = Drops::new();
        for node in self.state.nodes.keys() {
            let metrics = self.metrics(node).await?;
            let vni = vni.to_string();
            for (_, labels, value) in metrics.samples().filter(|(name, ..)| *name == VNI_DROPS) {
                let label = |key: &str| labels.iter().find(|(own, _)| *own == key).map(|(_, value)| *value);
                if let (true, Some(reason)) = (label("vni") == Some(vni.as_str()), label("reason")) {
                    drops.insert((node.clone(), reason.to_owned()), value);
                }
            }
        }
        Ok(drops)
    }
}

/// The counter of drops by VNI and reason.
pub(crate) const VNI_DROPS: &str = "sluice_vni_drops_total";

/// The counters that changed, and by how much.
fn explain(before: &Drops, after: &Drops) -> String {
    let mut text = String::new();
    for ((node, reason), count) in after {
        let more = count - before.get(&(node.clone(), reason.clone())).copied().unwrap_or(0.0);
        if more > 0.0 {
            let known = drops::ALL.iter().find(|known| known.name == reason);
            let meaning = known.map_or("", |known| known.text);
            text.push_str(&format!("    {node} dropped {more}: {reason} ({meaning})\n"));
        }
    }
    if text.is_empty() {
        text.push_str("    no node counted a drop\n");
    }
    text
}
