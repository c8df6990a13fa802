//! Two VMs of a VPC on one host: traffic does not leave the host.

use crate::Ground;
use crate::support::{Outcome, ensure, reaches};

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = ground.lab()?;
    let vni = lab.vm("web-1")?.vni.to_string();
    let mut at_gateways = [0.0; 2];
    for sum in &mut at_gateways {
        for gateway in ["gw-a", "gw-b"] {
            *sum += lab.metrics(gateway).await?.sum("sluice_vni_packets_total", &[("vni", &vni)]);
        }
        reaches(lab, "web-1", "web-2").await?;
        reaches(lab, "web-2", "web-1").await?;
    }
    let [first, second] = at_gateways;
    ensure!(first == second, "gateways saw {} packets of two VMs on one host", second - first);
    Ok(())
}
