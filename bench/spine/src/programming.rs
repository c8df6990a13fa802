//! Time from one bulk API call to the last gateway's acknowledgment. It changes with the stages of such a call.

use sluice_bench_report::Measure;
use sluice_bench_report::shell::Failure;
use sluice_client::{NewHost, NewSubnet, NewTenant, NewVpc};
use sluice_lab::Lab;
use sluice_types::VpcId;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Instances of one call.
const SIZES: [(u32, &str); 3] = [(10_000, "10k"), (100_000, "100k"), (1_000_000, "1m")];
/// Number of hosts over which the instances are spread. They have no agent, because only the time until
/// gateways have the entries is measured.
const HOSTS: u8 = 10;
/// Stages of a call, in order.
const STAGES: [&str; 7] = ["parse", "store", "read", "compile", "send", "ack", "total"];
/// A call that takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(120);

/// One bulk call.
pub struct Programmed {
    /// Name of the size.
    pub size: &'static str,
    /// Seconds to the last acknowledgment.
    pub seconds: f64,
    /// The times of its stages, as a sentence.
    pub stages: String,
}

/// Programs all sizes, each in a separate VPC.
///
/// # Errors
/// Errors of the API.
pub async fn program(lab: &Lab) -> Result<Vec<Programmed>, Failure> {
    let tenant = lab.api().create((), &NewTenant { name: "bench".into() }).await?.object;
    let hosts = hosts(lab).await?;
    let mut programmed = Vec::new();
    for (count, name) in SIZES {
        let vpc = NewVpc {
            name: format!("bulk-{name}"),
            tenant: tenant.id,
            cluster: None,
            vni: None,
            mtu: None,
            offload_kbps: None,
            internet_meter: None,
        };
        let vpc = lab.api().create((), &vpc).await?.object;
        let subnet = NewSubnet {
            name: "all".into(),
            ipv4: Some("10.0.0.0/8".parse()?),
            ipv6: None,
            ipv6_mode: None,
            dns: Vec::new(),
        };
        let subnet = lab.api().create(vpc.id, &subnet).await?.object;
        let body = body(0..count, &subnet.id.to_string(), &hosts);
        let start = Instant::now();
        let revision = create(lab, vpc.id, body).await?;
        let answered = start.elapsed();
        acknowledged(lab, &["gw-"], revision).await?;
        let total = start.elapsed();
        let stages = stage_metrics(lab).await?;
        programmed.push(Programmed {
            size: name,
            seconds: total.as_secs_f64(),
            stages: format!(
                "program_{name}: answered after {:.3} s, last gateway after {:.3} s; stages by the controller's \
                 clock: {}",
                answered.as_secs_f64(),
                total.as_secs_f64(),
                listed(&stages)
            ),
        });
    }
    Ok(programmed)
}

/// Registers hosts without an agent. Returns their ids.
///
/// # Errors
/// Errors of the API.
pub async fn hosts(lab: &Lab) -> Result<Vec<String>, Failure> {
    let mut hosts = Vec::new();
    for index in 0..HOSTS {
        let vtep = std::net::Ipv4Addr::new(192, 0, 2, 200 + index).into();
        let host = NewHost { name: format!("bulk-{index}"), vtep, agent: false };
        hosts.push(lab.api().create((), &host).await?.object.id.to_string());
    }
    Ok(hosts)
}

/// Sends a bulk call. Returns the revision that nodes must acknowledge.
///
/// # Errors
/// Errors of the API.
pub async fn create(lab: &Lab, vpc: VpcId, body: String) -> Result<u64, Failure> {
    let url = format!("{}/v1/vpcs/{vpc}/instances/bulk", lab.api().url());
    let token = std::fs::read_to_string(lab.paths().token())?;
    let request = reqwest::Client::new().post(&url).bearer_auth(token.trim());
    let request = request.header("content-type", "application/json").body(body).timeout(TIMEOUT);
    let answer = request.send().await?;
    let status = answer.status();
    let answer: serde_json::Value = answer.json().await?;
    if !status.is_success() {
        return Err(format!("{url}: {status}: {answer}").into());
    }
    Ok(answer["revision"].as_u64().ok_or("no revision in the answer")?)
}

/// The measures `program_*_s` of several rounds, and the stages of the round with the median time.
pub fn report(rounds: Vec<Programmed>) -> (Vec<Measure>, Vec<String>) {
    let (mut measures, mut notes) = (Vec::new(), Vec::new());
    for (_, name) in SIZES {
        let mut of_size: Vec<&Programmed> = rounds.iter().filter(|round| round.size == name).collect();
        of_size.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let seconds: Vec<f64> = of_size.iter().map(|round| round.seconds).collect();
        measures.push(Measure::alone(format!("program_{name}_s"), "s", &seconds));
        notes.extend(of_size.get(of_size.len() / 2).map(|round| round.stages.clone()));
    }
    (measures, notes)
}

/// The body of a bulk call for the instances with these numbers, spread over hosts.
pub fn body(numbers: Range<u32>, subnet: &str, hosts: &[String]) -> String {
    let mut body = String::with_capacity(numbers.len() * 64);
    body.push_str(r#"{"instances":["#);
    let first = numbers.start;
    for index in numbers {
        let comma = if index == first { "" } else { "," };
        let host = &hosts[index as usize % hosts.len()];
        // Writing to a String cannot fail.
        let _ = write!(body, r#"{comma}{{"name":"i{index}","subnet":"{subnet}","host":"{host}"}}"#);
    }
    body.push_str("]}");
    body
}

/// Waits until every node whose name begins like one of these has acknowledged `revision`.
///
/// # Errors
/// Errors of the API; if it takes two minutes.
pub async fn acknowledged(lab: &Lab, kinds: &[&str], revision: u64) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        let nodes = lab.api().nodes().await?;
        let mut waited = nodes.iter().filter(|node| kinds.iter().any(|kind| node.node.starts_with(kind)));
        if waited.all(|node| node.acknowledged_revision >= revision) {
            let failed = nodes.iter().find(|node| !node.failures.is_empty());
            return match failed {
                Some(node) => Err(format!("{}: {}", node.node, node.failures.join("; ")).into()),
                None => Ok(()),
            };
        }
        if start.elapsed() > TIMEOUT {
            return Err(format!(
                "revision {revision} was not acknowledged by all of {kinds:?} within {TIMEOUT:?}"
            )
            .into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The controller's stage timers of the last bulk call, seconds by stage.
async fn stage_metrics(lab: &Lab) -> Result<Vec<(String, f64)>, Failure> {
    let url = format!("{}/metrics", lab.api().url());
    let token = std::fs::read_to_string(lab.paths().token())?;
    let text = reqwest::Client::new().get(url).bearer_auth(token.trim()).send().await?.text().await?;
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
