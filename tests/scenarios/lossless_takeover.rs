//! Takeovers without loss, under traffic of one packet every two milliseconds: a gateway's agent is killed or
//! paused, and its programs forward the packets that still arrive; an operator drains a gateway and undrains
//! it.

use crate::Ground;
use crate::support::{Outcome, ensure, eventually};
use crate::takeover::{Bench, Hellos, RETURN_MAX, lab_of_three};
use nix::sys::signal::Signal;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None, Hellos::Slow).await?;
    let bench = Bench::new(&lab).await?;
    bench.owners_preferred().await?;
    agent_dies(&bench).await?;
    agent_is_paused(&bench).await?;
    gateway_is_drained(&bench).await
}

/// `kill -9` of the agent: the other gateways take over its vIPs, and its programs forward the packets that
/// still arrive.
async fn agent_dies(bench: &Bench<'_>) -> Outcome {
    let (streams, victim, _) = bench.streams_to_interrupt().await?;
    bench.lab.kill(&victim).await?;
    bench.lossless("an agent dies", streams).await?;
    bench.owns_nothing(&victim).await?;
    bench.lab.restart(&victim)?;
    bench.returns("an agent dies", &victim).await
}

/// A process that does not run for a while looks dead, and continues without having restarted.
async fn agent_is_paused(bench: &Bench<'_>) -> Outcome {
    let (streams, victim, _) = bench.streams_to_interrupt().await?;
    let process = bench.lab.process(&victim)?;
    process.signal(Signal::SIGSTOP);
    let moved = bench.owns_nothing(&victim).await;
    process.signal(Signal::SIGCONT);
    moved?;
    bench.lossless("an agent is paused", streams).await?;
    bench.returns("an agent is paused", &victim).await
}

/// An operator drains a gateway, and undrains it.
async fn gateway_is_drained(bench: &Bench<'_>) -> Outcome {
    let what = "a gateway is drained";
    let (streams, victim, _) = bench.streams_to_interrupt().await?;
    let id = bench.gateway(&victim).await?.id;
    bench.lab.api().drain(id, true, None).await?;
    eventually(RETURN_MAX, || async {
        let state = bench.gateway(&victim).await?.state;
        ensure!(state == "drained", "{victim} is {state}");
        Ok(())
    })
    .await?;
    bench.lossless(what, streams).await?;
    bench.owns_nothing(&victim).await?;
    let streams = bench.streams().await?;
    bench.lab.api().drain(id, false, None).await?;
    bench.lossless("a gateway is undrained", streams).await?;
    bench.owners_preferred().await
}
