//! The meter of a VPC has a rate in each direction, and its traffic passes all three gateways of a cluster: what the VMs send, because hosts
//! spread flows over all vIPs, and what they get, because the owners of their public addresses are different gateways. In each direction,
//! four times the rate is offered, of both address families, and the rate passes.
//!
//! Catches: gateways that each enforce the whole rate of what comes in, or an equal part of it; one direction that counts for the other;
//! a meter of a VPC that only some of its public addresses take from.

use crate::Ground;
use crate::meter_shares::{BURST, BYTES, FLOW_RATE, KBPS, SETTLED, is_shared, passes_the_rate};
use crate::support::{Failure, Outcome, answers, ensure, iperf};
use crate::takeover::{Hellos, three_gateways};
use futures::future::try_join_all;
use serde_json::json;
use sluice_client::{NewMeter, Tenant, Vpc};
use sluice_lab::internet::{CLIENT, WEB, web_address};
use sluice_lab::{Eip, Lab, Options};
use sluice_types::MeterId;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::sleep;

const GATEWAYS: [&str; 3] = ["gw-a", "gw-b", "gw-c"];
/// VMs and their only public addresses. These have different vIPs of the same address family, of which each gateway has one.
const VMS: [&str; 3] = ["web-1", "web-2", "web-3"];
const ADDRESSES: [&str; 3] = ["2001:db8:200::1c", "203.0.113.12", "203.0.113.14"];
const PORT: u16 = 5271;
/// Flows of each VM, so that all together offer four times the rate.
const FLOWS: &str = "8";
/// How long they last. All that is measured takes 10 s.
const SECONDS: &str = "12";
/// Until all flows have begun. The meter comes later, because it would drop the messages by which they begin.
const BEGUN: Duration = Duration::from_secs(2);
/// What is measured: the time is read with a precision of 10 ms, which is 0.25% of it.
const MEASURED: Duration = Duration::from_secs(4);
/// From the answer of the API until all gateways have the change.
const PROGRAMMED: Duration = Duration::from_secs(10);

pub async fn scenario(ground: &Ground) -> Outcome {
    let mut options = Options::standard(&ground.name, &ground.binary)?;
    three_gateways(&mut options.topology, Hellos::Slow)?;
    let internet = options.topology.internet.as_mut().ok_or_else(|| Failure::new("no Internet"))?;
    internet.eips.clear();
    for (vm, address) in VMS.into_iter().zip(ADDRESSES) {
        internet.eips.push(Eip { vm: vm.to_owned(), address: address.parse()? });
    }
    let lab = Lab::up(options).await?;
    all_gateways_have_an_address(&lab).await?;
    let meter = create_meter(&lab).await?;
    for direction in ["out", "in"] {
        let places: &[&str] = if direction == "out" { &[WEB] } else { &VMS };
        let measured = async {
            sleep(BEGUN).await;
            attach(&lab, Some(meter)).await?;
            sleep(SETTLED).await;
            passes_the_rate(&lab, places, MEASURED, direction).await?;
            is_shared(&lab, &GATEWAYS, direction).await?;
            attach(&lab, None).await
        };
        tokio::try_join!(flows(&lab, direction == "in"), measured)?;
    }
    Ok(())
}

/// Each public address is at another gateway.
async fn all_gateways_have_an_address(lab: &Lab) -> Outcome {
    let mut owners = BTreeSet::new();
    for address in ADDRESSES {
        let address: IpAddr = address.parse()?;
        // The router has a neighbor entry then.
        answers(lab, CLIENT, address, &[]).await?;
        owners.insert(lab.owner_of_public(address).await?);
    }
    ensure!(owners.len() == GATEWAYS.len(), "only the gateways {owners:?} have one of {ADDRESSES:?}");
    Ok(())
}

async fn create_meter(lab: &Lab) -> Result<MeterId, Failure> {
    let tenant = lab.api().find::<Tenant>("red", &[]).await?.id;
    let (kbps, burst) = (Some(KBPS), Some(BURST));
    let new = NewMeter {
        name: "both-ways".into(),
        tenant,
        in_kbps: kbps,
        in_burst: burst,
        out_kbps: kbps,
        out_burst: burst,
    };
    Ok(lab.api().create((), &new).await?.object.id)
}

/// Gives the VPC the meter, or takes it away, and waits until all gateways have the change.
async fn attach(lab: &Lab, meter: Option<MeterId>) -> Outcome {
    let vpc = lab.vpc("web")?.id;
    lab.api().update::<Vpc>(vpc, &json!({ "internet_meter": meter }), None).await?;
    Ok(lab.api().wait_programmed::<Vpc>(vpc, PROGRAMMED).await.map(drop)?)
}

/// All VMs send their flows to the web server, or get them from there. The one with an address of IPv6 uses that.
async fn flows(lab: &Lab, reversed: bool) -> Outcome {
    let options = ["-u", "-P", FLOWS, "-l", BYTES, "-b", FLOW_RATE, "-t", SECONDS];
    let options = [&options[..], &["-R"][..usize::from(reversed)]].concat();
    let all = VMS.into_iter().zip(ADDRESSES).zip(PORT..).map(|((vm, address), port)| {
        let target = web_address(address.contains(':'));
        iperf(lab, (vm, WEB), target, port, &options)
    });
    try_join_all(all).await.map(drop)
}
