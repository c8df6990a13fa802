//! Streams between two VMs on different hosts, compared with the same through the kernel's VXLAN devices without Sluice.
//! It changes with how VMs are connected.

use crate::forward::Effort;
use sluice_bench_report::shell::{Failure, run};
use sluice_bench_report::{Better, Measure};
use sluice_lab::Lab;
use std::time::Duration;

const MTU: u16 = 1430;

/// Gbit/s that an iperf3 client reports as received, from its JSON.
fn gigabits(json: &str) -> Result<f64, Failure> {
    let report: serde_json::Value = serde_json::from_str(json)?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.ok_or_else(|| format!("iperf3: {}", report["error"].as_str().unwrap_or("no result")))? / 1e9)
}

/// Millions of packets a second that an iperf3 client reports as received, from its JSON.
fn megapackets(json: &str) -> Result<f64, Failure> {
    let report: serde_json::Value = serde_json::from_str(json)?;
    let sum = &report["end"]["sum"];
    let number = |key: &str| {
        let error = || format!("iperf3: {}", report["error"].as_str().unwrap_or("no result"));
        sum[key].as_f64().ok_or_else(error)
    };
    Ok((number("packets")? - number("lost_packets")?) / number("seconds")? / 1e6)
}

/// What VMs send to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// `vm_tcp_gbps`: one TCP connection.
    Tcp,
    /// `vm_pps`: UDP packets of 64 bytes, as fast as iperf3 sends them.
    Packets,
}

impl Stream {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Tcp => &[],
            Self::Packets => &["-u", "-b", "0", "-l", "64"],
        }
    }

    fn figure(self, json: &str) -> Result<f64, Failure> {
        match self {
            Self::Tcp => gigabits(json),
            Self::Packets => megapackets(json),
        }
    }
}

/// Measures `vm_tcp_gbps` or `vm_pps`.
///
/// # Errors
/// Errors of the lab, the tools or iperf3.
pub async fn measure(lab: &Lab, effort: Effort, stream: Stream) -> Result<Vec<Measure>, Failure> {
    let (client, server) = ("web-1", "web-3");
    let address = lab.vm(server)?.ipv4.ok_or("web-3 has no IPv4 address")?.to_string();
    let seconds = format!("{}", effort.seconds.ceil());
    let plain = Plain::new()?;
    let mut pairs = Vec::new();
    for _ in 0..effort.rounds {
        let mut listener =
            lab.command(server, &["iperf3", "-s", "-1"])?.stdout(std::process::Stdio::null()).spawn()?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let command = ["iperf3", "-c", &address, "-t", &seconds, "-J"];
        let output = lab.exec(client, &[&command, stream.arguments()].concat()).await?;
        let ours = stream.figure(&String::from_utf8_lossy(&output.stdout))?;
        listener.wait().await?;
        pairs.push((ours, plain.figure(&seconds, stream).await?));
    }
    let (name, unit) = match stream {
        Stream::Tcp => ("vm_tcp_gbps", "Gbit/s"),
        Stream::Packets => ("vm_pps", "Mpps"),
    };
    Ok(vec![Measure::compared(name, unit, Better::More, "kernel_vxlan", &pairs)])
}

/// Two hosts with one VM each, and a top-of-rack bridge between them, with only the kernel's bridges and VXLAN
/// devices. They are removed when the value is dropped.
struct Plain {
    prefix: String,
}

impl Drop for Plain {
    fn drop(&mut self) {
        for place in ["tor", "h1", "h2", "v1", "v2"] {
            let _ = run(&format!("ip netns del {}-{place}", self.prefix));
        }
    }
}

impl Plain {
    fn new() -> Result<Self, Failure> {
        let plain = Self { prefix: format!("slbench{}", std::process::id()) };
        for place in ["tor", "h1", "h2", "v1", "v2"] {
            run(&format!("ip netns add {}-{place}", plain.prefix))?;
        }
        plain.at("tor", "ip link add br0 type bridge")?;
        plain.at("tor", "ip link set br0 up")?;
        for (index, other) in [(1, 2), (2, 1)] {
            plain.host(index, other)?;
        }
        Ok(plain)
    }

    fn at(&self, place: &str, line: &str) -> Result<String, Failure> {
        run(&format!("ip netns exec {}-{place} {line}", self.prefix))
    }

    fn host(&self, index: u8, other: u8) -> Result<(), Failure> {
        let (prefix, host, vm) = (&self.prefix, format!("h{index}"), format!("v{index}"));
        run(&format!(
            "ip link add eth0 netns {prefix}-{host} type veth peer name p{index} netns {prefix}-tor"
        ))?;
        self.at("tor", &format!("ip link set p{index} master br0 up"))?;
        run(&format!("ip link add eth0 netns {prefix}-{vm} type veth peer name vm netns {prefix}-{host}"))?;
        for line in [
            "ip link set eth0 up".to_owned(),
            format!("ip address add 192.0.2.{index}/24 dev eth0"),
            format!(
                "ip link add vx type vxlan id 7 local 192.0.2.{index} remote 192.0.2.{other} dstport 4789 dev eth0"
            ),
            "ip link add br0 type bridge".to_owned(),
            "ip link set vx master br0 up".to_owned(),
            "ip link set vm master br0 up".to_owned(),
            "ip link set br0 up".to_owned(),
        ] {
            self.at(&host, &line)?;
        }
        self.at(&vm, &format!("ip link set eth0 mtu {MTU} up"))?;
        self.at(&vm, &format!("ip address add 10.0.0.{index}/24 dev eth0")).map(drop)
    }

    async fn figure(&self, seconds: &str, stream: Stream) -> Result<f64, Failure> {
        let mut listener = std::process::Command::new("ip")
            .args(["netns", "exec", &format!("{}-v2", self.prefix), "iperf3", "-s", "-1"])
            .stdout(std::process::Stdio::null())
            .spawn()?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let arguments = stream.arguments().join(" ");
        let json = self.at("v1", &format!("iperf3 -c 10.0.0.2 -t {seconds} -J {arguments}"))?;
        listener.wait()?;
        stream.figure(&json)
    }
}
