//! VMs reach IPv4 addresses from their IPv6 addresses by the NAT gateway of the VPC (NAT64): a page, queries and answers, what a router
//! says about a packet that is too long, fragments, and a download, which goes on when the owner of the NAT gateway dies.

use crate::Ground;
use crate::internet::{copy, curl, download_from, output_of};
use crate::nat::{owner_of, sessions_of_address};
use crate::nat_failover::everything_is_copied;
use crate::support::{
    Failure, Outcome, address, answers, drops, ensure, ensure_timely, eventually, execute, ping, slow_hellos,
};
use sluice_lab::internet::{ISP, LARGE_FILE, WEB, web_address};
use sluice_lab::{Lab, Options};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// VMs of a VPC with a NAT gateway and without public addresses, at different hosts.
const VMS: [&str; 2] = ["shop-1", "shop-3"];
const PUBLIC: &str = "203.0.113.128";
/// 4 Mbit/s, so that a download takes 17 s.
const SHAPER: [&str; 2] = [
    "qdisc add dev ix0 root handle 1: htb default 1",
    "class add dev ix0 parent 1: classid 1:1 htb rate 4mbit",
];
const TAKEN_OVER: Duration = Duration::from_secs(10);

/// The address that stands for an IPv4 address.
pub fn mapped(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets().map(u16::from);
    Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a << 8 | b, c << 8 | d)
}

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    slow_hellos(&mut options.topology);
    let lab = Lab::up(options).await?;
    let IpAddr::V4(web) = web_address(false) else {
        return Err(Failure::new("the web server has no IPv4 address"));
    };
    let to = mapped(web);
    everything_is_copied(&lab).await?;
    pages_come_by_ipv6(&lab, to).await?;
    packets_of_all_sizes_come_back(&lab, to).await?;
    private_addresses_are_refused(&lab).await?;
    downloads_go_on(&lab, to).await
}

/// The web server sees the public IPv4 address, and the sessions have the IPv6 address of the VM.
async fn pages_come_by_ipv6(lab: &Lab, to: Ipv6Addr) -> Outcome {
    let url = format!("http://[{to}]/");
    for vm in VMS {
        let seen =
            || Ok::<_, Failure>(std::fs::read_to_string(lab.paths().log(WEB))?.matches(PUBLIC).count());
        let before = seen()?;
        let text = output_of(&lab.exec(vm, &curl(&[], &url)).await?);
        ensure!(text == "Welcome to the Internet.\n", "{vm} got from {url}: {text}");
        ensure!(seen()? > before, "{WEB} was not reached from {PUBLIC} by {vm}");
        answers(lab, vm, to.into(), &[]).await?;
        let inside = address(lab.vm(vm)?, true)?;
        let owner = owner_of(lab, PUBLIC).await?;
        let sessions = sessions_of_address(lab, vm, inside, &owner, &["--outside", PUBLIC]).await?;
        ensure!(sessions.iter().any(|it| it["protocol"] == "tcp" && it["remote_port"] == 80), "{sessions:?}");
        ensure!(sessions.iter().any(|it| it["protocol"] == "icmp"), "{sessions:?}");
    }
    Ok(())
}

/// The link behind the first router carries IPv4 packets of 1400 bytes: IPv6 packets of 1420.
async fn packets_of_all_sizes_come_back(lab: &Lab, to: Ipv6Addr) -> Outcome {
    let vm = VMS[0];
    answers(lab, vm, to.into(), &["-M", "do", "-s", "1372"]).await?;
    let options = ["-c", "3", "-i", "0.2", "-M", "do", "-s", "1380", "-W", "1"];
    let ping = ping(lab, vm, to.into(), &options).await?;
    let said = ping.text.to_lowercase().replace(' ', "");
    ensure!(ping.received == 0 && said.contains("mtu=1420"), "{vm} was not told of MTU 1420: {}", ping.text);
    execute(lab, vm, &["ip", "-6", "route", "flush", "cache"]).await
}

async fn private_addresses_are_refused(lab: &Lab) -> Outcome {
    let vm = lab.vm(VMS[0])?;
    let before = drops(lab, vm.vni, "nat64_address").await?;
    let ping =
        ping(lab, VMS[0], mapped(Ipv4Addr::new(10, 0, 0, 1)).into(), &["-c", "2", "-i", "0.1", "-W", "0.5"])
            .await?;
    let more = drops(lab, vm.vni, "nat64_address").await? - before;
    ensure!(
        ping.received == 0 && more > 0.0,
        "{} packets to a private address were refused: {}",
        more,
        ping.text
    );
    Ok(())
}

/// The owner of the NAT gateway dies during a download, by a connection of which the other gateway has a copy.
async fn downloads_go_on(lab: &Lab, to: Ipv6Addr) -> Outcome {
    let vm = VMS[1];
    let url = format!("http://[{to}]/{LARGE_FILE}");
    download_from(lab, vm, true, &url).await?;
    for shaper in SHAPER {
        execute(lab, ISP, &[&["tc"], &shaper.split(' ').collect::<Vec<_>>()[..]].concat()).await?;
    }
    let inside = address(lab.vm(vm)?, true)?;
    let owner_dies = async {
        let owner = owner_of(lab, PUBLIC).await?;
        eventually(TAKEN_OVER, async || {
            let open = sessions_of_address(lab, vm, inside, &owner, &["--protocol", "tcp"]).await?;
            ensure!(open.iter().any(|it| it["state"] == "established"), "{owner} has {open:?}");
            Ok(())
        })
        .await?;
        lab.kill(&owner).await?;
        eventually(TAKEN_OVER, async || {
            let next = owner_of(lab, PUBLIC).await?;
            ensure!(next != owner, "{PUBLIC} is still at {owner}");
            Ok(())
        })
        .await?;
        ensure_timely!(copy(lab, vm, true).exists(), "{vm} had its file before the owner died");
        Ok(())
    };
    tokio::try_join!(download_from(lab, vm, true, &url), owner_dies).map(drop)
}
