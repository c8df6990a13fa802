//! Takeovers that lose nothing, under traffic of a packet every two milliseconds:
//! a gateway's agent dies, or is paused, and its programs forward what still comes;
//! an operator drains a gateway, and puts it back.

use crate::Ground;
use crate::support::{Outcome, ensure, eventually};
use crate::takeover::{Bench, CALM, HOME, lab_of_three};
use nix::sys::signal::Signal;

pub async fn scenario(ground: &Ground) -> Outcome {
    let lab = lab_of_three(ground, None).await?;
    let bench = Bench::new(&lab).await?;
    bench.at_home().await?;
    agent_dies(&bench).await?;
    agent_is_paused(&bench).await?;
    gateway_is_drained(&bench).await
}

/// `kill -9` of the agent: the others take its vIPs, and its programs forward what still comes.
async fn agent_dies(bench: &Bench<'_>) -> Outcome {
    let streams = bench.streams()?;
    tokio::time::sleep(CALM).await;
    let (victim, _) = bench.busiest().await?;
    bench.lab.kill(&victim).await?;
    let seen = bench.worst("an agent dies", streams).await?;
    ensure!(seen.lost == 0, "{} packets lost by the death of {victim}'s agent", seen.lost);
    bench.owns_nothing(&victim).await?;
    bench.lab.restart(&victim)?;
    bench.returns("an agent dies", &victim).await
}

/// A process that is not run for a while is as good as dead, and comes back without having been.
async fn agent_is_paused(bench: &Bench<'_>) -> Outcome {
    let streams = bench.streams()?;
    tokio::time::sleep(CALM).await;
    let (victim, _) = bench.busiest().await?;
    let process = bench.lab.process(&victim)?;
    process.signal(Signal::SIGSTOP);
    let moved = bench.owns_nothing(&victim).await;
    process.signal(Signal::SIGCONT);
    moved?;
    let seen = bench.worst("an agent is paused", streams).await?;
    ensure!(seen.lost == 0, "{} packets lost by the pause of {victim}'s agent", seen.lost);
    bench.returns("an agent is paused", &victim).await
}

/// An operator takes a gateway out of service, and puts it back.
async fn gateway_is_drained(bench: &Bench<'_>) -> Outcome {
    let what = "a gateway is drained";
    let streams = bench.streams()?;
    tokio::time::sleep(CALM).await;
    let (victim, _) = bench.busiest().await?;
    let id = bench.gateway(&victim).await?.id;
    bench.lab.api().drain(id, true, None).await?;
    eventually(HOME, || async {
        let state = bench.gateway(&victim).await?.state;
        ensure!(state == "drained", "{victim} is {state}");
        Ok(())
    })
    .await?;
    let seen = bench.worst(what, streams).await?;
    ensure!(seen.lost == 0, "{} packets lost by draining {victim}", seen.lost);
    bench.owns_nothing(&victim).await?;
    let streams = bench.streams()?;
    bench.lab.api().drain(id, false, None).await?;
    let seen = bench.worst("and put back", streams).await?;
    ensure!(seen.lost == 0, "{} packets lost by putting {victim} back", seen.lost);
    bench.at_home().await
}
