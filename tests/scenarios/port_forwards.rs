//! Ports of a NAT gateway's address are forwarded to VMs without public addresses: the Internet and VMs of all VPCs reach them there by
//! TCP and UDP, and errors come back. No packet has a session. The owner of the NAT gateway's vIP dies with its machine while the Internet
//! downloads a file from a VM, and the download goes on. A port that is not forwarded any more is closed.

use crate::Ground;
use crate::internet::{curl, output_of};
use crate::nat::{owner_of, sessions_at};
use crate::support::{
    Failure, Outcome, Probe, address, ensure, ensure_timely, eventually, execute, slow_hellos, who,
};
use serde_json::Value;
use sluice_client::{Instance, NatGateway, NewPortForward, PortForward};
use sluice_lab::internet::{CLIENT, LARGE_FILE};
use sluice_lab::{Lab, Options};
use sluice_types::ForwardProtocol;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

/// VMs of VPC shop: one that serves, and one that asks.
const SERVER: &str = "shop-1";
const NEIGHBOR: &str = "shop-2";
/// VMs of VPC web, which has a NAT gateway of its own: with the addresses of the server, and with an EIP.
const TWIN: &str = "web-1";
const ELASTIC: &str = "web-3";
const PUBLIC: &str = "203.0.113.128";
const TWINS_PUBLIC: &str = "203.0.113.129";
/// Where the server echoes and has files, and the public ports of these. The higher one is among those that VMs share.
const ECHO: u16 = 7081;
const FILES: u16 = 8081;
const PUBLIC_ECHO: u16 = 53;
const PUBLIC_FILES: u16 = 20_080;
/// A download takes 4 s.
const SHAPER: [&str; 2] = [
    "qdisc add dev eth0 root handle 1: htb default 1",
    "class add dev eth0 parent 1: classid 1:1 htb rate 16mbit",
];
const PROGRAMMED: Duration = Duration::from_secs(10);
/// The takeover, at hello intervals of 100 ms, and an announcement that was lost and is repeated.
const TAKEN_OVER: Duration = Duration::from_secs(5);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    slow_hellos(&mut options.topology);
    let internet = options.topology.internet.as_mut().ok_or_else(|| Failure::new("no Internet"))?;
    internet.eips.retain(|eip| eip.vm == ELASTIC);
    options.topology.vpcs[0].nat = vec![TWINS_PUBLIC.parse()?];
    let lab = Lab::up(options).await?;
    let inside = SocketAddr::new(address(lab.vm(SERVER)?, false)?, ECHO).to_string();
    let _echo = Probe::listening(&lab, SERVER, &["echo", &inside, SERVER]).await?;
    let root = lab.paths().web_root().display().to_string();
    let argv = ["busybox", "httpd", "-f", "-p", &FILES.to_string(), "-h", &root];
    let mut files = lab.command(SERVER, &argv)?;
    let _files = files.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
    let echo = forward(&lab, "echo", ForwardProtocol::Tcp, (PUBLIC_ECHO, ECHO)).await?;
    forward(&lab, "echo-udp", ForwardProtocol::Udp, (PUBLIC_ECHO, ECHO)).await?;
    forward(&lab, "files", ForwardProtocol::Tcp, (PUBLIC_FILES, FILES)).await?;
    all_reach_the_server(&lab).await?;
    owner_dies_during_a_download(&lab).await?;
    lab.api().delete::<PortForward>(echo.id, None).await?;
    let at = SocketAddr::new(PUBLIC.parse()?, PUBLIC_ECHO);
    eventually(PROGRAMMED, async || {
        let name = who(&lab, CLIENT, "tcp", at).await?;
        ensure!(name.is_none(), "{name:?} answers at tcp port {at}, which is not forwarded any more");
        Ok(())
    })
    .await?;
    let name = who(&lab, CLIENT, "udp", at).await?;
    ensure!(name.as_deref() == Some(SERVER), "{name:?} answers at udp port {at}");
    Ok(())
}

/// Forwards a port to the server, and waits until all gateways have it.
async fn forward(
    lab: &Lab,
    name: &str,
    protocol: ForwardProtocol,
    (port, inside_port): (u16, u16),
) -> Result<PortForward, Failure> {
    let nat_gateway = lab.api().find::<NatGateway>("shop", &[]).await?.id;
    let instance = lab.api().find::<Instance>(SERVER, &[]).await?.id;
    let (name, inside_port) = (name.to_owned(), Some(inside_port));
    let new = NewPortForward { name, nat_gateway, protocol, address: None, port, instance, inside_port };
    let made = lab.api().create((), &new).await?.object;
    Ok(lab.api().wait_programmed::<PortForward>(made.id, PROGRAMMED).await?)
}

/// From the Internet, from the server itself, and from VMs of both VPCs, with and without an EIP. None of it has a session of the server.
async fn all_reach_the_server(lab: &Lab) -> Outcome {
    let at = SocketAddr::new(PUBLIC.parse()?, PUBLIC_ECHO);
    for from in [CLIENT, NEIGHBOR, TWIN, ELASTIC, SERVER] {
        for protocol in ["udp", "tcp"] {
            let name = who(lab, from, protocol, at).await?;
            ensure!(
                name.as_deref() == Some(SERVER),
                "{from} asked {at} by {protocol}, and {name:?} answered"
            );
        }
    }
    let sessions = served_sessions(lab).await?;
    ensure!(sessions.is_empty(), "the server has sessions: {sessions:?}");
    Ok(())
}

/// The sessions of the server's ports at the owner.
async fn served_sessions(lab: &Lab) -> Result<Vec<Value>, Failure> {
    let owner = owner_of(lab, PUBLIC).await?;
    let mut sessions = sessions_at(lab, SERVER, &owner, &[]).await?;
    sessions.retain(|session| [ECHO, FILES].iter().any(|port| session["inside_port"] == *port));
    Ok(sessions)
}

async fn owner_dies_during_a_download(lab: &Lab) -> Outcome {
    for shaper in SHAPER {
        execute(lab, SERVER, &[&["tc"], &shaper.split(' ').collect::<Vec<_>>()[..]].concat()).await?;
    }
    let copy = lab.paths().root().join("forwarded.download");
    let (file, url) = (copy.display().to_string(), format!("http://{PUBLIC}:{PUBLIC_FILES}/{LARGE_FILE}"));
    let original = std::fs::read(lab.paths().web_root().join(LARGE_FILE))?;
    let victim = lab.owner_of_public(PUBLIC.parse()?).await?;
    let name = lab.state().topology.gateways[victim].name.clone();
    let arrived = || std::fs::metadata(&copy).map_or(0, |file| file.len());
    let download = async {
        let output = lab.exec(CLIENT, &curl(&["--output", &file], &url)).await?;
        ensure!(output.status.success(), "{CLIENT} downloads {url}: {}", output_of(&output));
        ensure!(std::fs::read(&copy)? == original, "{CLIENT} got another file from {url}");
        Ok(())
    };
    let death = async {
        eventually(PROGRAMMED, async || {
            ensure!(arrived() > 0, "nothing of {url} has arrived");
            Ok(())
        })
        .await?;
        let sessions = served_sessions(lab).await?;
        ensure!(sessions.is_empty(), "the download has a session: {sessions:?}");
        lab.connect_gateway(victim, false).await?;
        lab.kill(&name).await?;
        let before = arrived();
        eventually(TAKEN_OVER, async || {
            let owner = owner_of(lab, PUBLIC).await?;
            ensure!(owner != name, "{PUBLIC} is still at {name}");
            Ok(())
        })
        .await?;
        ensure_timely!(before < original.len() as u64, "{CLIENT} had its file before {name} died");
        Ok::<_, Failure>(())
    };
    tokio::try_join!(download, death)?;
    Ok(())
}
