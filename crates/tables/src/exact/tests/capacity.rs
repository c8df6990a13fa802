//! The number of further entries that is reported as certain.

use super::*;

/// What is put into a table until it refuses.
#[derive(Clone, Copy, Debug)]
enum Kinds {
    Ipv4,
    Ipv6,
    /// IPv6 addresses after this many IPv4 addresses.
    Ipv6After(u32),
    /// Both in turn.
    Both,
}

impl Kinds {
    fn key(self, i: u32) -> Key {
        let is_ipv6 = match self {
            Self::Ipv4 => false,
            Self::Ipv6 => true,
            Self::Ipv6After(others) => i >= others,
            Self::Both => i.is_multiple_of(2),
        };
        if is_ipv6 { v6(1, i) } else { v4(1, i) }
    }
}

fn kinds() -> impl Strategy<Value = Kinds> {
    prop_oneof![
        Just(Kinds::Ipv4),
        Just(Kinds::Ipv6),
        (0u32..800).prop_map(Kinds::Ipv6After),
        Just(Kinds::Both)
    ]
}

/// Fills a table until it refuses. Returns the number of entries that it took, and the least total that it promised once
/// it had an address of each family that it gets: before, the promise holds for any order of the families.
fn fill(setup: &mut Setup, kinds: Kinds) -> (u64, u64) {
    /// A promised total, for entries of which any may be an IPv6 address or none.
    struct Promise {
        total: u64,
        ipv6: bool,
    }
    let mut promises: Vec<Promise> = Vec::new();
    let (mut has_ipv6, mut settled) = (false, 0);
    for i in 0.. {
        let key = kinds.key(i);
        if !has_ipv6 && matches!(key, Key::Ip { address: IpAddr::V6(_), .. }) {
            has_ipv6 = true;
            promises.retain(|promise| promise.ipv6);
            // The next promise is the first one after this address.
            settled = promises.len() + 1;
        }
        let before = setup.exact.entries();
        let capacities = setup.exact.capacities(&setup.pool);
        assert!(capacities.ipv6 <= capacities.ipv4, "{capacities:?}");
        promises.push(Promise { total: before + capacities.ipv6, ipv6: true });
        if !has_ipv6 {
            promises.push(Promise { total: before + capacities.ipv4, ipv6: false });
        }
        match setup.exact.put(&mut setup.pool, key, Entry { mac: 1, next: 1 }) {
            Ok(_) => {}
            Err(Error::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let entries = setup.exact.entries();
    for Promise { total, ipv6 } in &promises {
        assert!(*total <= entries, "{total} were promised (IPv6: {ipv6}), {entries} fit");
    }
    let counted = promises.iter().skip(settled).filter(|promise| promise.ipv6 == has_ipv6);
    (counted.map(|promise| promise.total).min().unwrap_or(entries), entries)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, ..ProptestConfig::default() })]
    /// Catches a capacity that does not count what growth needs, and one that is far too small.
    #[test]
    fn entries_fit_up_to_the_capacity_that_is_reported(
        cells in 120u32..3000,
        reserved in 1usize..200,
        used in prop::collection::vec((1u32..60, any::<bool>()), 0..30),
        kinds in kinds(),
    ) {
        let cells = cells + reserved as u32 / 2;
        let mut setup = Setup::new(cells, reserved, u64::MAX, Immediate);
        // Other users of the memory, some of which have left holes.
        let mut kept = 0;
        for (length, stays) in used {
            let Ok(first) = setup.pool.allocate(length) else { continue };
            if stays {
                kept += length;
            } else {
                setup.pool.retire(first, length);
            }
        }
        let (least, filled) = fill(&mut setup, kinds);
        prop_assert!(
            (least + 1) * 100 >= filled * 88,
            "{least} were promised, {filled} fit, {kept} cells were taken"
        );
    }
}

/// Catches a reserve that is counted as free.
#[test]
fn capacity_of_a_full_table_is_zero() {
    for kinds in [Kinds::Ipv4, Kinds::Ipv6, Kinds::Both] {
        let mut setup = Setup::new(2000, 1, u64::MAX, Immediate);
        fill(&mut setup, kinds);
        let capacities = setup.exact.capacities(&setup.pool);
        assert_eq!((capacities.ipv4, capacities.ipv6), (0, 0), "{kinds:?}");
        // A removal that frees a slot is not enough: the table stays above its certain load.
        let removed = setup.exact.entries() / 8;
        for i in 0..removed as u32 {
            setup.exact.take(&mut setup.pool, kinds.key(i)).unwrap();
        }
        assert!(setup.exact.capacities(&setup.pool).ipv4 > 0, "{kinds:?}");
    }
}
