//! A host without Sluice: the kernel's own VXLAN device, pointed
//! at a vIP, with an instance's addresses on it.

use crate::error::{Error, Result};
use crate::exec::{ip_batch, script};
use crate::lab::Lab;
use crate::vm::PROGRAMMED_TIMEOUT;
use sluice_client::{Host, Instance, NewHost, NewInstance};
use sluice_types::first_host;
use std::fmt::Write as _;
use std::net::IpAddr;

/// A foreign host with its one instance.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// Name of its place, for [`Lab::exec`].
    pub name: String,
    /// Its host and instance in the API.
    pub host: Host,
    /// The instance whose addresses its VXLAN device has.
    pub instance: Instance,
}

impl Lab {
    /// Adds a foreign host with the underlay address `vtep` to the first
    /// switch, and an instance of the subnet on it.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn add_foreign(&self, name: &str, vtep: IpAddr, vpc: &str, subnet: &str) -> Result<Foreign> {
        let bad = |problem: String| Error::Topology { file: "the lab".to_owned(), problem };
        let prefixes = self.state.topology.subnet(vpc, subnet);
        let prefixes = prefixes.ok_or_else(|| bad(format!("no subnet `{subnet}` in VPC `{vpc}`")))?;
        let vips = &self.state.topology.cluster.vips;
        let vip = vips.iter().find(|vip| vip.is_ipv4() == vtep.is_ipv4());
        let vip = vip.ok_or_else(|| bad(format!("no vIP of the family of {vtep}")))?;
        let state = self.vpc(vpc)?;
        // Created before the gateways learn of the host, since they resolve its MAC address at once.
        self.plug_in(name, vtep).await?;
        let host = NewHost { name: name.to_owned(), vtep, agent: false };
        let host = self.api.create((), &host).await?.object;
        let instance = NewInstance {
            name: name.to_owned(),
            subnet: state.subnets[subnet],
            host: host.id,
            mac: None,
            ipv4: None,
            ipv6: None,
            security_groups: Some(Vec::new()),
            settings: Default::default(),
        };
        let instance = self.api.create(state.id, &instance).await?.object;
        let mtu = self.api.get::<sluice_client::Vpc>(state.id).await?.mtu;
        let mut text = format!(
            "echo 0 >/proc/sys/net/ipv6/conf/default/accept_ra\nip -batch - <<END\n\
             link add vx0 address {} mtu {mtu} type vxlan id {} local {vtep} remote {vip} \
             dstport {} nolearning udp6zerocsumrx\n\
             link set vx0 up\n",
            instance.mac,
            state.vni,
            sluice_types::VXLAN_PORT
        );
        if let (Some(address), Some(net)) = (instance.ipv4, prefixes.ipv4) {
            let _ = writeln!(text, "addr add {address}/{} dev vx0", net.prefix_len());
            text.push_str(&default_route(net.into()));
        }
        if let (Some(address), Some(net)) = (instance.ipv6, prefixes.ipv6) {
            let _ = writeln!(text, "addr add {address}/{} dev vx0 nodad", net.prefix_len());
            text.push_str(&default_route(net.into()));
        }
        script(&self.paths, name, "making a foreign VXLAN device", &(text + "END\n")).await?;
        self.api.wait_programmed::<Instance>(instance.id, PROGRAMMED_TIMEOUT).await?;
        Ok(Foreign { name: name.to_owned(), host, instance })
    }

    /// A namespace with one link to the first switch and one underlay address.
    async fn plug_in(&self, name: &str, vtep: IpAddr) -> Result<()> {
        let underlay = &self.state.topology.underlay;
        let length = match vtep {
            IpAddr::V4(_) => underlay.ipv4.prefix_len(),
            IpAddr::V6(_) => underlay.ipv6.prefix_len(),
        };
        let switch = &self.state.topology.switches[0].name;
        let (own, at) = (self.paths.namespace(name), self.paths.namespace(switch));
        let mtu = underlay.mtu;
        // Interface names have at most 15 characters; the name of the port does not matter.
        let port: String = format!("x-{name}").chars().take(15).collect();
        let lines = format!(
            "netns add {own}\n\
             link add eth0 mtu {mtu} netns {own} type veth peer name {port} mtu {mtu} netns {at}\n"
        );
        ip_batch(&self.paths, "plugging a foreign host in", &lines).await?;
        script(
            &self.paths,
            switch,
            "plugging a foreign host in",
            &format!("ip link set {port} master br0 up\n"),
        )
        .await?;
        let nodad = if vtep.is_ipv6() { "nodad" } else { "" };
        let text =
            format!("ip link set lo up\nip addr add {vtep}/{length} dev eth0 {nodad}\nip link set eth0 up\n");
        script(&self.paths, name, "setting a foreign host up", &text).await.map(drop)
    }

    /// Removes a foreign host, in the API and on the machine.
    ///
    /// # Errors
    /// Errors of the API and of the commands.
    pub async fn remove_foreign(&self, foreign: Foreign) -> Result<()> {
        self.api.delete::<Instance>(foreign.instance.id, None).await?;
        self.api.delete::<Host>(foreign.host.id, None).await?;
        let lines = format!("netns del {}\n", self.paths.namespace(&foreign.name));
        ip_batch(&self.paths, "removing a foreign host", &lines).await
    }
}

fn default_route(net: sluice_types::IpNet) -> String {
    first_host(&net).map_or_else(String::new, |router| format!("route add default via {router} dev vx0\n"))
}
