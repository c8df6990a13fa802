//! A host that learns paths for what its VMs send, with simulated time. It changes with what is counted of a host.

use crate::gateway::{GATEWAYS, Gateways};
use crate::load::{Load, Random, Zipf};
use sluice_bench_report::shell::Failure;
use sluice_rsp::Destination;
use sluice_rsp::cache::{Cache, Config, Input, Output};
use sluice_types::Vni;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;

const VNI: u32 = 100;
const STEP_MS: u64 = 50;
/// Time in which the host learns what it usually has.
const WARM_UP_MS: u64 = 60_000;
/// Interval at which a host reads which paths were used.
const USE_MS: u64 = 5_000;

/// How a host keeps its paths right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// It asks what has changed in the network.
    ByNetwork,
    /// It asks about each path.
    OneByOne,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seconds after the warm-up.
    pub seconds: u64,
    /// What VMs send.
    pub load: Load,
}

/// What a host had and sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Paths, on average and at most.
    pub entries_mean: f64,
    /// The most.
    pub entries_peak: f64,
    /// Networks and paths that it asked about, in a second.
    pub questions_per_s: f64,
    /// Bytes of IP packets of RSP in both directions, in a second.
    pub bytes_per_s: f64,
    /// Paths that led to another host than the instance's, as a share of all, on average.
    pub wrong_share: f64,
}

/// A host and its VMs.
struct Host {
    cache: Cache,
    gateways: Gateways,
    random: Random,
    zipf: Zipf,
    load: Load,
    /// Until when VMs send to destinations, and how often that was seen.
    sending: HashMap<IpAddr, (u64, u64)>,
    ends: BinaryHeap<Reverse<(u64, IpAddr)>>,
    questions: u64,
}

impl Host {
    fn new(load: Load, how: Reconciled) -> Result<Self, Failure> {
        let vni = Vni::new(VNI)?;
        let mut cache = Cache::new(Config::default(), 0);
        cache.handle(0, Input::Gateways { vni, addresses: &GATEWAYS });
        Ok(Self {
            cache,
            gateways: Gateways::new(vni, load.vms_of_host, how == Reconciled::ByNetwork)?,
            random: Random::new(0x51_0c_e5),
            zipf: Zipf::new(load.vms),
            load,
            sending: HashMap::new(),
            ends: BinaryHeap::new(),
            questions: 0,
        })
    }

    /// Handles an input, and what follows from it, until all messages are answered.
    fn handle(&mut self, now_ms: u64, input: Input<'_>) -> Result<(), Failure> {
        let mut outputs = self.cache.handle(now_ms, input);
        while let Some(output) = outputs.pop() {
            let Output::Send { message, .. } = output else { continue };
            self.questions += message.len() as u64;
            for answer in self.gateways.answer(now_ms, &message)? {
                outputs.extend(self.cache.handle(now_ms, Input::Message(&answer)));
            }
        }
        Ok(())
    }

    fn step(&mut self, now_ms: u64) -> Result<(), Failure> {
        let seconds = STEP_MS as f64 / 1000.0;
        for _ in 0..(f64::from(self.load.changes_per_s) * seconds) as u32 {
            let vm = self.random.below(self.load.vms);
            self.gateways.change(vm);
        }
        self.gateways.bear((f64::from(self.load.births_per_s) * seconds) as u32);
        self.begin_to_send(now_ms, seconds)?;
        while let Some(&Reverse((end_ms, address))) = self.ends.peek()
            && end_ms <= now_ms
        {
            self.ends.pop();
            if self.sending.get(&address).is_some_and(|(until_ms, _)| *until_ms <= now_ms) {
                self.sending.remove(&address);
            }
        }
        if now_ms.is_multiple_of(USE_MS) {
            self.note_use(now_ms)?;
        }
        self.handle(now_ms, Input::Tick)
    }

    fn begin_to_send(&mut self, now_ms: u64, seconds: f64) -> Result<(), Failure> {
        let mut at = self.random.exponential(1.0);
        let wanted = self.load.rate_at(now_ms) * seconds;
        while at < wanted {
            at += self.random.exponential(1.0);
            // Ranks are spread over the hosts.
            let rank = u64::from(self.zipf.draw(&mut self.random));
            let vm = (rank * 700_001 % u64::from(self.load.vms)) as u32;
            let address = Gateways::address(vm);
            let until_ms = now_ms + (self.random.exponential(self.load.lasts_s) * 1000.0) as u64;
            let (known_ms, _) = self.sending.entry(address).or_default();
            *known_ms = until_ms.max(*known_ms);
            self.ends.push(Reverse((until_ms, address)));
            if self.cache.path(&Destination { vni: Vni::new(VNI)?, address }).is_none() {
                let message = self.gateways.notify(now_ms, address)?;
                self.handle(now_ms, Input::Message(&message))?;
            }
        }
        Ok(())
    }

    fn note_use(&mut self, now_ms: u64) -> Result<(), Failure> {
        let vni = Vni::new(VNI)?;
        let used = self.cache.paths().map(|(destination, _)| destination.address).collect::<Vec<_>>();
        let hits: Vec<_> = used
            .into_iter()
            .map(|address| {
                let uses = self.sending.get_mut(&address).map_or(0, |(_, uses)| {
                    *uses = now_ms;
                    *uses
                });
                (Destination { vni, address }, uses)
            })
            // A destination without traffic keeps its number.
            .filter(|(_, uses)| *uses != 0)
            .collect();
        self.handle(now_ms, Input::Hits(&hits))
    }

    /// Paths that lead to another host than the instance's.
    fn wrong(&self) -> usize {
        let is_wrong = |(destination, path): &(Destination, sluice_rsp::Path)| {
            path.host != self.gateways.host_of(destination.address)
        };
        self.cache.paths().filter(is_wrong).count()
    }
}

/// Simulates a host.
///
/// # Errors
/// If a message cannot be sent, which would be an error of this program.
pub fn run(settings: &Settings, how: Reconciled) -> Result<Outcome, Failure> {
    let mut host = Host::new(settings.load, how)?;
    let mut now_ms = 0;
    while now_ms < WARM_UP_MS {
        now_ms += STEP_MS;
        host.step(now_ms)?;
    }
    let (questions, bytes) = (host.questions, host.gateways.wire.bytes);
    let (mut sum, mut peak, mut wrong, mut steps) = (0, 0, 0, 0);
    while now_ms < WARM_UP_MS + settings.seconds * 1000 {
        now_ms += STEP_MS;
        host.step(now_ms)?;
        let paths = host.cache.usage().paths;
        (sum, peak, wrong, steps) = (sum + paths, peak.max(paths), wrong + host.wrong(), steps + 1);
    }
    let seconds = settings.seconds as f64;
    Ok(Outcome {
        entries_mean: sum as f64 / f64::from(steps),
        entries_peak: peak as f64,
        questions_per_s: (host.questions - questions) as f64 / seconds,
        bytes_per_s: (host.gateways.wire.bytes - bytes) as f64 / seconds,
        wrong_share: wrong as f64 / sum.max(1) as f64,
    })
}
