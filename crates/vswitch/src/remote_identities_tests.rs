//! What a host knows over time, which gateways it asks, and what it replaces.

use super::*;

const GATEWAYS: [&str; 2] = ["192.0.2.11", "192.0.2.12"];
const CLUSTER: u32 = 9;

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn to(number: u32, last: u32) -> Destination {
    Destination { vni: vni(number), address: IpAddr::from((last + (10 << 24)).to_be_bytes()) }
}

fn network(number: u32) -> Network {
    let gateways = GATEWAYS.map(|gateway| gateway.parse().unwrap()).to_vec();
    Network { vni: vni(number), cluster: CLUSTER, gateways, has_instance: true }
}

/// A host whose instances are in the networks 1 to 40, with a model of the map of the packet programs.
struct Host {
    identities: RemoteIdentities,
    networks: BTreeMap<Vni, Network>,
    map: HashMap<Destination, u16>,
    /// When packets last used a destination.
    used: HashMap<Destination, u64>,
}

impl Host {
    fn new() -> Self {
        let networks = (1..=40).map(|number| (vni(number), network(number))).collect();
        let mut identities = RemoteIdentities::new(0);
        identities.set_networks(1, &networks);
        Self { identities, networks, map: HashMap::new(), used: HashMap::new() }
    }

    /// Performs the changes, and returns the destinations that are asked for, by gateway.
    fn perform(&mut self, actions: Actions) -> Vec<(IpAddr, Destination)> {
        for change in &actions.changes {
            match change {
                Change::Write(to, identity) => self.map.insert(*to, *identity),
                Change::Remove(to) => self.map.remove(to),
            };
        }
        let asked = |((cluster, gateway), entries): ((u32, IpAddr), Vec<Destination>)| {
            assert_eq!(cluster, CLUSTER);
            entries.into_iter().map(move |destination| (gateway, destination))
        };
        actions.questions.into_iter().flat_map(asked).collect()
    }

    /// A packet to an unknown destination is denied.
    fn needs(&mut self, now_ms: u64, destination: Destination) {
        let mut actions = Actions::default();
        self.identities.note_unknown(now_ms, destination, &mut actions);
        self.used.insert(destination, now_ms);
        self.perform(actions);
    }

    fn asks(&mut self, now_ms: u64) -> Vec<(IpAddr, Destination)> {
        let mut actions = Actions::default();
        let used = |to: &Destination| self.used.get(to).copied();
        self.identities.handle_timer(now_ms, &self.networks, used, &mut actions);
        self.perform(actions)
    }

    fn is_told(&mut self, now_ms: u64, destination: Destination, identity: u16) {
        let mut actions = Actions::default();
        let entries = [IdentityEntry { destination, identity }];
        self.identities.answer(now_ms, &entries, |_| true, &mut actions);
        self.perform(actions);
    }

    /// Needs, asks for and is told an identity.
    fn learns(&mut self, now_ms: u64, destination: Destination, identity: u16) {
        self.needs(now_ms, destination);
        while !self.asks(now_ms).is_empty() {}
        self.is_told(now_ms, destination, identity);
    }

    /// The times at which it asks until `end_ms`.
    fn asks_until(&mut self, end_ms: u64) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(due_ms) = self.identities.due_ms().filter(|due_ms| *due_ms < end_ms) {
            if !self.asks(due_ms).is_empty() {
                times.push(due_ms);
            }
        }
        times
    }

    fn knows(&self, destination: Destination) -> Option<u16> {
        self.map.get(&destination).copied()
    }
}

#[test]
fn unknown_destination_is_asked_for_four_times_at_changing_gateways() {
    let (mut host, one) = (Host::new(), to(1, 5));
    host.needs(1_000, one);
    host.needs(1_000, one);
    let mut gateways = Vec::new();
    for now_ms in [1_000, 1_200, 1_400, 1_600] {
        assert_eq!(host.identities.due_ms(), Some(now_ms));
        let asked = host.asks(now_ms);
        assert_eq!(asked.iter().map(|(_, to)| *to).collect::<Vec<_>>(), [one]);
        gateways.push(asked[0].0);
    }
    assert!(gateways.windows(2).all(|pair| pair[0] != pair[1]), "{gateways:?}");
    assert_eq!((host.asks(1_800), host.identities.len()), (vec![], 0));
    let counts = Counts { asked: 4, unanswered: 1, ..Counts::default() };
    assert_eq!(host.identities.counts(), counts);
    host.is_told(1_801, one, 7);
    assert_eq!(host.knows(one), None, "nothing was asked");
}

#[test]
fn answer_is_believed_only_if_it_was_asked_for_and_from_the_right_cluster() {
    let (mut host, one) = (Host::new(), to(1, 5));
    host.needs(0, one);
    host.is_told(0, one, 7);
    assert_eq!(host.knows(one), None, "not asked yet");
    host.asks(0);
    let mut actions = Actions::default();
    let entries = [IdentityEntry { destination: one, identity: 7 }];
    host.identities.answer(1, &entries, |vni| vni != one.vni, &mut actions);
    host.is_told(1, to(1, 6), 7);
    assert_eq!((actions, host.map.len()), (Actions::default(), 0));
    host.is_told(1, one, 7);
    assert_eq!(host.knows(one), Some(7));
}

#[test]
fn identity_is_refreshed_while_it_is_used_and_follows_the_instance() {
    let (mut host, one) = (Host::new(), to(1, 5));
    host.learns(0, one, 7);
    for (round, identity) in [7, 8, 8].into_iter().enumerate() {
        let now_ms = REFRESH_MS * (round as u64 + 1);
        host.used.insert(one, now_ms - 1);
        assert_eq!(host.identities.due_ms(), Some(now_ms));
        assert_eq!(host.asks(now_ms).len(), 1);
        host.is_told(now_ms, one, identity);
        assert_eq!(host.knows(one), Some(identity));
    }
    // Not used since the last round: asked for a minute, then forgotten.
    let last_used = host.used[&one];
    let end_ms = last_used + IDLE_MS;
    let mut now_ms = host.identities.due_ms().unwrap();
    while now_ms < end_ms {
        assert_eq!(host.asks(now_ms).len(), 1, "{now_ms}");
        host.is_told(now_ms, one, 8);
        now_ms = host.identities.due_ms().unwrap();
    }
    assert_eq!((host.asks(now_ms), host.knows(one), host.identities.len()), (vec![], None, 0));
}

#[test]
fn identity_that_no_gateway_confirms_is_forgotten_after_twenty_seconds() {
    let (mut host, one) = (Host::new(), to(1, 5));
    host.learns(0, one, 7);
    host.used.insert(one, 1 << 40);
    let times = host.asks_until(LIFETIME_MS);
    assert_eq!(times[..5], [5_000, 5_200, 5_400, 5_600, 10_800]);
    assert!(times.len() <= 4 * 3, "{times:?}");
    assert_eq!(host.knows(one), Some(7));
    host.asks(LIFETIME_MS);
    assert_eq!((host.knows(one), host.identities.len()), (None, 0));
}

/// A destination without groups permits nothing, so it is not refreshed: a VM that scans addresses has no more questions
/// asked than the events of its packets.
#[test]
fn identity_0_is_forgotten_after_five_seconds_without_a_question() {
    let (mut host, one) = (Host::new(), to(1, 5));
    host.learns(0, one, 0);
    assert_eq!(host.knows(one), Some(0));
    host.used.insert(one, REFRESH_MS - 1);
    assert_eq!((host.asks(REFRESH_MS - ROUND_MS), host.knows(one)), (vec![], Some(0)));
    assert_eq!((host.asks(REFRESH_MS), host.knows(one)), (vec![], None));
    // A member that leaves all groups is written as 0 at once.
    host.learns(10_000, one, 7);
    host.used.insert(one, 14_000);
    host.asks(15_000);
    host.is_told(15_000, one, 0);
    assert_eq!(host.knows(one), Some(0));
}

#[test]
fn network_that_leaves_and_another_database_take_their_identities_along() {
    let mut host = Host::new();
    for number in [1, 2, 3] {
        host.learns(u64::from(number) * ROUND_MS, to(number, 5), 7);
    }
    host.networks.remove(&vni(1));
    host.networks.get_mut(&vni(2)).unwrap().has_instance = false;
    let actions = host.identities.set_networks(1, &host.networks);
    host.perform(actions);
    assert_eq!([1, 2, 3].map(|number| host.knows(to(number, 5))), [None, None, Some(7)]);
    let actions = host.identities.set_networks(0, &host.networks);
    host.perform(actions);
    assert_eq!(host.knows(to(3, 5)), Some(7), "the database is not known");
    let actions = host.identities.set_networks(2, &host.networks);
    host.perform(actions);
    assert_eq!((host.knows(to(3, 5)), host.identities.len()), (None, 0));
}

#[test]
fn adopted_identities_stay_and_are_asked_for_at_once() {
    let (mut host, one, none) = (Host::new(), to(1, 5), to(1, 6));
    host.map = HashMap::from([(one, 7), (none, 0)]);
    host.used.insert(one, 0);
    let actions = host.identities.adopt(100, &[(one, 7, 0), (none, 0, 0)]);
    host.perform(actions);
    assert_eq!((host.knows(one), host.knows(none)), (Some(7), None));
    assert_eq!(host.asks(100).len(), 1);
    host.used.insert(one, 1 << 40);
    host.asks_until(100 + LIFETIME_MS + 1);
    assert_eq!(host.knows(one), None, "no gateway confirmed it");
}

#[test]
fn a_network_that_fills_the_space_replaces_its_own_destinations() {
    let mut host = Host::new();
    for last in 0..100 {
        host.learns(u64::from(last) * ROUND_MS, to(2, last), 7);
    }
    // One network takes half of the space, and then keeps it.
    for last in 0..100_000 {
        host.needs(1_000, to(1, last));
    }
    assert_eq!(host.identities.len(), ENTRIES_MAX / 2);
    let of = |host: &Host, number| host.identities.networks[&vni(number)].len();
    assert_eq!((of(&host, 1), of(&host, 2)), (ENTRIES_MAX / 2 - 100, 100));
    // Others have shares of the rest, of which each replaces the least used of its own.
    for last in 0..10_000 {
        host.needs(2_000, to(2, last + 1_000));
    }
    assert_eq!(of(&host, 2), SHARE_MAX);
    assert!(host.map.is_empty() && host.identities.counts().evicted > 60_000);
    // When no space is left, a new one replaces one of the network with the most.
    for number in 3..=40 {
        for last in 0..SHARE_MAX as u32 {
            host.needs(3_000, to(number, last));
        }
    }
    assert_eq!((host.identities.len(), host.identities.due.len()), (ENTRIES_MAX, ENTRIES_MAX));
    for number in 1..=40 {
        assert!(of(&host, number).abs_diff(ENTRIES_MAX / 40) <= 1, "network {number}: {}", of(&host, number));
    }
    let before = host.identities.counts().asked;
    for now_ms in (4_000..4_100).step_by(ROUND_MS as usize) {
        assert_eq!((host.asks(now_ms).len(), host.asks(now_ms).len()), (QUESTIONS_PER_ROUND, 0));
        let asked = host.identities.counts().asked - before;
        assert!(asked <= (now_ms - 4_000 + ROUND_MS) / ROUND_MS * QUESTIONS_PER_ROUND as u64, "{asked}");
    }
}
