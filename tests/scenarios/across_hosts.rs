//! Two VMs of a VPC on different hosts, whose packets pass through gateways.

use crate::Ground;
use crate::support::{Outcome, ensure, reaches};

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let vni = lab.vm("web-1")?.vni.to_string();
    let mut counts = [0.0; 2];
    for sum in &mut counts {
        for gateway in ["gw-a", "gw-b"] {
            *sum += lab.metrics(gateway).await?.sum("sluice_vni_packets_total", &[("vni", &vni)]);
        }
        reaches(lab, "web-1", "web-3").await?;
        reaches(lab, "web-3", "web-1").await?;
    }
    let [first, second] = counts;
    // Two address families, two directions, three echoes of two packets each.
    ensure!(second - first >= 24.0, "gateways counted only {} packets", second - first);
    Ok(())
}
