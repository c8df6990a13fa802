//! From one bulk API call to the last gateway's acknowledgement.

use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use sluice_client::{NewHost, NewSubnet, NewTenant, NewVpc};
use sluice_lab::Lab;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Instances of one call.
const SIZES: [(u32, &str); 3] = [(10_000, "10k"), (100_000, "100k"), (1_000_000, "1m")];
/// Hosts that the instances are spread over: foreign ones, since the time until
/// gateways have their entries is what is asked.
const HOSTS: u8 = 10;
/// Stages in the order in which a call passes them.
const STAGES: [&str; 7] = ["parse", "store", "read", "compile", "send", "ack", "total"];
/// A call that takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(120);

/// All sizes, each in a VPC of its own, and what the controller says of its stages.
///
/// # Errors
/// What the API said.
pub async fn measure(lab: &Lab) -> Result<(Vec<Measure>, String), Failure> {
    let token = std::fs::read_to_string(lab.paths().token())?;
    let http = reqwest::Client::new();
    let tenant = lab.api().create((), &NewTenant { name: "bench".into() }).await?.object;
    let mut hosts = Vec::new();
    for index in 0..HOSTS {
        let vtep = std::net::Ipv4Addr::new(192, 0, 2, 200 + index).into();
        let host = NewHost { name: format!("bulk-{index}"), vtep, agent: false };
        hosts.push(lab.api().create((), &host).await?.object.id.to_string());
    }
    let (mut measures, mut stages) = (Vec::new(), String::new());
    for (count, name) in SIZES {
        let vpc = NewVpc {
            name: format!("bulk-{name}"),
            tenant: tenant.id,
            cluster: None,
            vni: None,
            mtu: None,
            offload_kbps: None,
        };
        let vpc = lab.api().create((), &vpc).await?.object;
        let subnet =
            NewSubnet { name: "all".into(), ipv4: Some("10.0.0.0/8".parse()?), ipv6: None, dns: Vec::new() };
        let subnet = lab.api().create(vpc.id, &subnet).await?.object;
        let body = body(count, &subnet.id.to_string(), &hosts);
        let url = format!("{}/v1/vpcs/{}/instances/bulk", lab.api().url(), vpc.id);
        let start = Instant::now();
        let request =
            http.post(&url).bearer_auth(token.trim()).header("content-type", "application/json").body(body);
        let answer = request.timeout(TIMEOUT).send().await?;
        let status = answer.status();
        let answer: serde_json::Value = answer.json().await?;
        if !status.is_success() {
            return Err(format!("{url}: {status}: {answer}").into());
        }
        let answered = start.elapsed();
        let revision = answer["revision"].as_u64().ok_or("no revision in the answer")?;
        acknowledged(lab, revision, start).await?;
        let total = start.elapsed();
        measures.push(Measure::alone(format!("program_{name}_s"), "s", total.as_secs_f64()));
        let after = stage_metrics(lab, &http, token.trim()).await?;
        writeln!(
            stages,
            "- {name}: answered after {:.3} s, last gateway after {:.3} s; {}",
            answered.as_secs_f64(),
            total.as_secs_f64(),
            listed(&after)
        )?;
    }
    Ok((measures, stages))
}

fn body(count: u32, subnet: &str, hosts: &[String]) -> String {
    let mut body = String::with_capacity(count as usize * 64);
    body.push_str(r#"{"instances":["#);
    for index in 0..count {
        let comma = if index == 0 { "" } else { "," };
        let host = &hosts[index as usize % hosts.len()];
        // Writing to a String cannot fail.
        let _ = write!(body, r#"{comma}{{"name":"i{index}","subnet":"{subnet}","host":"{host}"}}"#);
    }
    body.push_str("]}");
    body
}

/// Waits until every gateway has acknowledged `revision`.
async fn acknowledged(lab: &Lab, revision: u64, start: Instant) -> Result<(), Failure> {
    loop {
        let nodes = lab.api().nodes().await?;
        let mut gateways = nodes.iter().filter(|node| node.node.starts_with("gw-"));
        if gateways.all(|node| node.acknowledged_revision >= revision) {
            let failed = nodes.iter().find(|node| !node.failures.is_empty());
            return match failed {
                Some(node) => Err(format!("{}: {}", node.node, node.failures.join("; ")).into()),
                None => Ok(()),
            };
        }
        if start.elapsed() > TIMEOUT {
            return Err(format!(
                "revision {revision} was not acknowledged by all gateways within {TIMEOUT:?}"
            )
            .into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The controller's stage timers of the last bulk call, seconds by stage.
async fn stage_metrics(
    lab: &Lab,
    http: &reqwest::Client,
    token: &str,
) -> Result<Vec<(String, f64)>, Failure> {
    let url = format!("{}/metrics", lab.api().url());
    let text = http.get(url).bearer_auth(token).send().await?.text().await?;
    let stages = text.lines().filter(|line| line.contains("bulk_stage_seconds{"));
    let mut stages: Vec<(String, f64)> = stages
        .filter_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            let stage = key.split("stage=\"").nth(1)?.split('"').next()?;
            Some((stage.to_owned(), value.parse().ok()?))
        })
        .collect();
    stages.sort_by_key(|(stage, _)| STAGES.iter().position(|known| known == stage));
    Ok(stages)
}

fn listed(stages: &[(String, f64)]) -> String {
    let parts: Vec<_> = stages.iter().map(|(stage, value)| format!("{stage} {value:.3} s")).collect();
    parts.join(", ")
}
