use super::*;
use crate::grace::Immediate;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A cell outside the pool's reach is not needed: the superblock's reserved
/// words serve as root words here.
fn root(family: Family) -> Root {
    Root { cell: 0, offset: if family == Family::V4 { 40 } else { 44 }, family }
}

fn pool(cells: u32) -> Pool {
    Pool::new(Memory::anonymous(cells).unwrap(), Box::new(Immediate))
}

type Model = BTreeMap<Prefix, u32>;

fn longest(model: &Model, bits: u128) -> Option<u32> {
    model
        .iter()
        .filter(|(prefix, _)| prefix.length == 0 || (prefix.bits ^ bits) >> (128 - prefix.length) == 0)
        .max_by_key(|(prefix, _)| prefix.length)
        .map(|(_, &leaf)| leaf)
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Prefix, u32),
    Remove(usize),
    Adopt,
    Clear,
}

/// Prefixes close to each other, so that they nest and share nodes.
fn prefix(family: Family) -> impl Strategy<Value = Prefix> {
    let max = family.max_length();
    (0..=max, prop::sample::select(vec![0u32, 0x0a00_0000, 0x0a01_0203, 0x0a01_ffff, 0xffff_ffff]), 0u32..64)
        .prop_map(move |(length, base, low)| {
            let bits = match family {
                Family::V4 => u128::from(base ^ low) << 96,
                Family::V6 => u128::from(base) << 96 | u128::from(base ^ low) << 40 | u128::from(low),
            };
            let bits = if length == 0 { 0 } else { bits >> (128 - length) << (128 - length) };
            Prefix { bits, length }
        })
}

fn ops(family: Family) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => (prefix(family), 1u32..5).prop_map(|(prefix, leaf)| Op::Insert(prefix, leaf)),
        10 => any::<prop::sample::Index>().prop_map(|index| Op::Remove(index.index(1 << 16))),
        1 => Just(Op::Adopt),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 1..150)
}

/// Where answers change: at and beside the ends of every prefix.
fn probes(model: &Model, family: Family) -> Vec<u128> {
    let unit = if family == Family::V4 { 1u128 << 96 } else { 1 };
    let mut all = vec![0, u128::MAX / unit * unit];
    for prefix in model.keys() {
        let size_minus = if prefix.length == 0 { u128::MAX } else { (u128::MAX >> 1) >> (prefix.length - 1) };
        let last = prefix.bits | (size_minus / unit * unit);
        all.extend([prefix.bits, last, prefix.bits.wrapping_sub(unit), last.wrapping_add(unit)]);
    }
    all
}

fn check(pool: &Pool, model: &Model, family: Family) {
    let memory = pool.memory();
    for bits in probes(model, family) {
        assert_eq!(find(memory, root(family), bits), longest(model, bits), "{bits:032x}");
    }
    let all: Model = iter(memory, root(family)).collect();
    assert_eq!(&all, model);
}

fn run(ops: Vec<Op>, cells: u32, family: Family) {
    let mut pool = pool(cells);
    let empty = pool.free_cells();
    let mut model = Model::new();
    for op in ops {
        let count = model.len() as u32;
        match op {
            Op::Insert(prefix, leaf) => match insert(&mut pool, root(family), count, prefix, leaf) {
                Ok(old) => assert_eq!(old, model.insert(prefix, leaf)),
                Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
            },
            Op::Remove(index) => {
                let absent = Prefix { bits: 0, length: 0 };
                let prefix = model.keys().nth(index % model.len().max(1)).copied().unwrap_or(absent);
                match remove(&mut pool, root(family), count, prefix) {
                    Ok(old) => assert_eq!(old, model.remove(&prefix)),
                    Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
                }
            }
            Op::Clear => {
                clear(&mut pool, root(family));
                model.clear();
            }
            Op::Adopt => {
                pool.flush().unwrap();
                let free = pool.free_cells();
                let memory = pool.memory().clone();
                let mut used = Used::new(&memory);
                assert_eq!(adopt(&memory, root(family), &mut used), Ok(count));
                pool = Pool::with_used(memory, Box::new(Immediate), &used);
                assert_eq!(pool.free_cells(), free);
            }
        }
        check(&pool, &model, family);
    }
    clear(&mut pool, root(family));
    pool.flush().unwrap();
    assert_eq!(pool.free_cells(), empty);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn ipv4_agrees_with_a_linear_scan(ops in ops(Family::V4)) {
        run(ops, 4096, Family::V4);
    }

    #[test]
    fn ipv6_agrees_with_a_linear_scan(ops in ops(Family::V6)) {
        run(ops, 16384, Family::V6);
    }

    #[test]
    fn full_memory_changes_nothing(ops in ops(Family::V6), cells in 8u32..300) {
        run(ops, cells, Family::V6);
    }

    #[test]
    fn prefixes_convert_both_ways(address in any::<u128>(), length in 0u8..=128) {
        let net = IpNet::new(std::net::Ipv6Addr::from(address).into(), length).unwrap().trunc();
        let (family, prefix) = Prefix::from_net(net);
        prop_assert_eq!(prefix.to_net(family), net);
    }
}

#[test]
fn form_follows_the_number_of_routes() {
    let mut pool = pool(4096);
    let route = |i: u32| Prefix { bits: u128::from(i) << 108, length: 20 };
    let form = |pool: &Pool| root(Family::V4).load(pool.memory()).0;
    for i in 0..17 {
        insert(&mut pool, root(Family::V4), i, route(i), 1).unwrap();
        assert_eq!(form(&pool), if i < 16 { layout::LPM_SCAN } else { layout::LPM_TRIE });
    }
    for left in (0..17).rev() {
        remove(&mut pool, root(Family::V4), left + 1, route(left)).unwrap();
        let expected = match left {
            0 => 0,
            1..=8 => layout::LPM_SCAN,
            _ => layout::LPM_TRIE,
        };
        assert_eq!(form(&pool), expected, "{left} routes");
    }
}

#[test]
fn ten_routes_take_few_cells() {
    let mut pool = pool(4096);
    let before = pool.free_cells();
    for i in 0..10u32 {
        let prefix = Prefix { bits: u128::from(i) << 108, length: 20 };
        insert(&mut pool, root(Family::V4), i, prefix, 1).unwrap();
    }
    pool.flush().unwrap();
    assert_eq!(before - pool.free_cells(), 3);
}

#[test]
fn loops_and_strays_are_reported() {
    let mut pool = pool(4096);
    for i in 0..40u32 {
        let prefix = Prefix { bits: u128::from(i) << 96, length: 32 };
        insert(&mut pool, root(Family::V4), i, prefix, 1).unwrap();
    }
    let memory = pool.memory().clone();
    let (_, first) = root(Family::V4).load(&memory);
    for stray in [first, 4095, 100_000] {
        memory.store32(first, 4 * 5, stray);
        let found = adopt(&memory, root(Family::V4), &mut Used::new(&memory));
        assert!(matches!(found, Err(Error::Corrupt(_))), "{stray}: {found:?}");
    }
}
