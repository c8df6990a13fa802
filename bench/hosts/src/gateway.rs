//! A gateway as a host sees it: its answers, and how many bytes they have in the underlay. It changes with what gateways answer.

use sluice_bench_report::shell::Failure;
use sluice_envelope::{BootId, ClusterKey, KeyRing, Limits, NodeId};
use sluice_rsp::{
    Answer, AnswerEntry, Capabilities, Destination, Message, NetworkAnswer, NetworkQuery, Opener, Path,
    PermitEntry, Query, Reception, Sealer,
};
use sluice_types::{MacAddr, Vni};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// The gateways of the VPC.
pub const GATEWAYS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))];
/// The host that is simulated.
pub const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));
const MTU: u16 = 1500;
const IP_AND_UDP_BYTES: usize = 28;
const LIFETIME_MS: u32 = 60_000;
/// What every host can receive.
const RECEPTION: Reception = Reception { mtu: 1450, capabilities: Capabilities::OWN };
/// A permit is renewed when a path is asked for this time after the last one (`RENEW_US` of `crates/gateway`).
const PERMIT_MS: u64 = 3_000;
/// When all packets are sealed and opened. What that costs does not depend on the simulated time.
const SEALED_MS: u64 = 1_000;
/// Changes in one answer.
const CHANGES_MAX: usize = 48;
/// Changes that the journal has.
const JOURNAL: usize = 1 << 18;

/// Messages as IP packets, and what they cost gateways.
pub struct Wire {
    keys: KeyRing,
    sealer: Sealer,
    opener: Opener,
    /// Bytes of all messages so far.
    pub bytes: u64,
    /// Packets that gateways have received, and that they have sent.
    pub packets: [u64; 2],
    /// Time that gateways need to open the ones and to seal the others.
    pub busy: Duration,
}

impl Wire {
    /// A wire that has carried nothing.
    ///
    /// # Errors
    /// None in practice: the key is valid.
    pub fn new() -> Result<Self, Failure> {
        let key = ClusterKey::new(1, &std::array::from_fn(|byte| byte as u8), 0, u64::MAX)?;
        let sealer = Sealer::new(NodeId::new(1), BootId::from_bytes([7; 16]));
        let opener = Opener::new(Limits::default(), 0);
        let keys = KeyRing::new(vec![key])?;
        Ok(Self { keys, sealer, opener, bytes: 0, packets: [0; 2], busy: Duration::ZERO })
    }

    /// Counts the packets of a message.
    ///
    /// # Errors
    /// If the message cannot be sent or is refused, which would be an error of this program.
    pub fn carry(&mut self, message: &Message) -> Result<(), Failure> {
        let mut begun = Instant::now();
        let packets = self.sealer.seal(&self.keys, SEALED_MS, HOST, MTU, message)?;
        let of_host = matches!(
            message,
            Message::Request { .. } | Message::Reconcile { .. } | Message::Permitted { .. }
        );
        if of_host {
            begun = Instant::now();
            for packet in &packets {
                self.opener.open(&self.keys, SEALED_MS, HOST, packet)?;
            }
        }
        self.busy += begun.elapsed();
        self.packets[usize::from(!of_host)] += packets.len() as u64;
        self.bytes += packets.iter().map(|packet| (packet.len() + IP_AND_UDP_BYTES) as u64).sum::<u64>();
        Ok(())
    }

    /// Counts the packets of a Permit and of its answer.
    ///
    /// # Errors
    /// As [`Wire::carry`].
    pub fn carry_permits(&mut self, entries: &[PermitEntry]) -> Result<(), Failure> {
        self.carry(&Message::Permit { entries: entries.to_vec() })?;
        self.carry(&Message::Permitted { reception: RECEPTION, entries: entries.to_vec() })
    }
}

/// All gateways, which have the same tables.
pub struct Gateways {
    vni: Vni,
    vms_of_host: u32,
    by_network: bool,
    revision: u64,
    /// Changes by revision.
    journal: VecDeque<(u64, IpAddr)>,
    /// Where instances have moved to, as a number that is added to that of the host.
    moved: HashMap<IpAddr, u32>,
    permitted_ms: HashMap<IpAddr, u64>,
    /// Permits that were sent.
    pub permits: u64,
    /// Whether each of them has packets of its own, not shared with those of other hosts.
    pub carries_permits: bool,
    /// What they and the host have sent.
    pub wire: Wire,
}

impl Gateways {
    /// Gateways of a VPC. `by_network`: they say which paths have changed.
    pub fn new(vni: Vni, vms_of_host: u32, by_network: bool) -> Result<Self, Failure> {
        Ok(Self {
            vni,
            vms_of_host,
            by_network,
            revision: 1,
            journal: VecDeque::new(),
            moved: HashMap::new(),
            permitted_ms: HashMap::new(),
            permits: 0,
            carries_permits: true,
            wire: Wire::new()?,
        })
    }

    /// The address of a VM.
    pub fn address(vm: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + vm).into()
    }

    /// An instance moves.
    pub fn change(&mut self, vm: u32) {
        let address = Self::address(vm);
        self.revision += 1;
        *self.moved.entry(address).or_default() += 1;
        self.journal.push_back((self.revision, address));
        if self.journal.len() > JOURNAL {
            self.journal.pop_front();
        }
    }

    /// Instances come.
    pub fn bear(&mut self, instances: u32) {
        self.revision += u64::from(instances);
    }

    /// The host of an instance.
    pub fn host_of(&self, address: IpAddr) -> IpAddr {
        let vm = match address {
            IpAddr::V4(address) => u32::from(address) - 0x0a00_0000,
            IpAddr::V6(_) => 0,
        };
        let moved = self.moved.get(&address).copied().unwrap_or_default();
        Ipv4Addr::from(0x6440_0000 + vm / self.vms_of_host + moved).into()
    }

    /// The path to an instance. Its host is told of the sender, if that is long ago.
    fn path(&mut self, now_ms: u64, address: IpAddr) -> Result<Path, Failure> {
        let host = self.host_of(address);
        if self.permitted_ms.get(&host).is_none_or(|at_ms| now_ms - at_ms > PERMIT_MS) {
            if self.carries_permits {
                self.wire.carry_permits(&[PermitEntry { vni: self.vni, host: HOST }])?;
            }
            self.permits += 1;
            self.permitted_ms.insert(host, now_ms);
        }
        let (mac, vni) = (MacAddr::local(7), self.vni);
        let (revision, by_network) = (self.revision, self.by_network);
        let (lifetime_ms, reception) = (LIFETIME_MS, RECEPTION);
        Ok(Path { host, mac, vni, lifetime_ms, revision, by_network, reception })
    }

    /// Notifies the host of a path.
    pub fn notify(&mut self, now_ms: u64, address: IpAddr) -> Result<Message, Failure> {
        let answer = Answer::Path(self.path(now_ms, address)?);
        let destination = Destination { vni: self.vni, address };
        let message = Message::Notify { answers: vec![AnswerEntry { destination, answer }] };
        self.wire.carry(&message)?;
        Ok(message)
    }

    /// The answers to a message of the host.
    pub fn answer(&mut self, now_ms: u64, message: &Message) -> Result<Vec<Message>, Failure> {
        self.wire.carry(message)?;
        let answers = match message {
            Message::Request { id, queries, .. } => {
                let answer = |query: &Query| -> Result<AnswerEntry, Failure> {
                    let path = self.path(now_ms, query.destination.address)?;
                    Ok(query.answer(Some(&path), self.revision))
                };
                let answers = queries.iter().map(answer).collect::<Result<_, Failure>>()?;
                vec![Message::Reply { id: *id, answers }]
            }
            Message::Reconcile { queries } => {
                queries.iter().map(|query| Message::Reconciled { answers: self.changes(query) }).collect()
            }
            _ => Vec::new(),
        };
        for message in &answers {
            self.wire.carry(message)?;
        }
        Ok(answers)
    }

    fn changes(&self, &NetworkQuery { vni, since }: &NetworkQuery) -> Vec<NetworkAnswer> {
        let first = self.journal.partition_point(|(revision, _)| *revision <= since);
        let is_known = since != 0 && (first > 0 || self.journal.len() < JOURNAL);
        if !is_known {
            return vec![NetworkAnswer::Unknown { vni, since, revision: self.revision }];
        }
        let mut told = self.journal.range(first..).take(CHANGES_MAX);
        let changed =
            told.clone().map(|(_, address)| NetworkAnswer::Changed { vni, prefix: (*address).into() });
        let count = told.len();
        let is_whole = first + count == self.journal.len();
        let last = told.next_back().map_or(self.revision, |(revision, _)| *revision);
        let revision = if is_whole { self.revision } else { last };
        changed.chain([NetworkAnswer::Current { vni, since, revision, changes: count as u16 }]).collect()
    }
}
