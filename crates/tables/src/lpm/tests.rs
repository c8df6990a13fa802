use super::*;
use crate::grace::Immediate;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::mem::offset_of;

/// A root word for tests: one of the reserved words of the superblock.
fn root(family: Family) -> Root {
    Root { cell: 0, offset: if family == Family::V4 { 40 } else { 48 }, family }
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
    Merge(Vec<(Prefix, u32)>),
    Adopt,
    Clear,
}

/// Prefixes close to each other, so that they nest and share directories and buckets.
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
        1 => prop::collection::vec((prefix(family), 1u32..5), 0..60).prop_map(Op::Merge),
        1 => Just(Op::Adopt),
        1 => Just(Op::Clear),
    ];
    prop::collection::vec(op, 1..150)
}

/// Addresses at which the answer can change: the first and last address of every prefix, and those next to
/// them.
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
        for length in [0, 20, 32, family.max_length()] {
            let prefix = Prefix { bits: bits & mask(length), length };
            assert_eq!(leaf_of(memory, root(family), prefix), model.get(&prefix).copied());
        }
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
                assert_eq!(remove(&mut pool, root(family), count, prefix), Ok(model.remove(&prefix)));
            }
            Op::Merge(routes) => match merge(&mut pool, root(family), routes.iter().copied()) {
                Ok(merged) => {
                    let before = model.clone();
                    model.extend(routes);
                    let changed = model.iter().filter(|&(prefix, leaf)| before.get(prefix) != Some(leaf));
                    assert_eq!(merged, Merged { routes: model.len() as u32, changed: changed.count() });
                }
                Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
            },
            Op::Clear => {
                clear(&mut pool, root(family));
                model.clear();
            }
            Op::Adopt => {
                pool.flush().unwrap();
                let free = pool.free_cells();
                let memory = pool.memory().clone();
                let mut reachable = ReachableCells::new(&memory);
                assert_eq!(adopt(&memory, root(family), &mut reachable), Ok(count));
                pool = Pool::with_reachable(memory, Box::new(Immediate), &reachable);
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
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn ipv4_agrees_with_a_linear_scan(ops in ops(Family::V4)) {
        run(ops, 4096, Family::V4);
    }

    #[test]
    fn ipv6_agrees_with_a_linear_scan(ops in ops(Family::V6)) {
        run(ops, 16384, Family::V6);
    }

    #[test]
    fn full_memory_changes_nothing(ops in ops(Family::V6), cells in layout::CELL_FIRST_FREE + 3..316) {
        run(ops, cells, Family::V6);
    }

    #[test]
    fn prefixes_convert_to_nets_and_back(address in any::<u128>(), length in 0u8..=128) {
        let net = IpNet::new(std::net::Ipv6Addr::from(address).into(), length).unwrap().trunc();
        let (family, prefix) = Prefix::from_net(net);
        prop_assert_eq!(prefix.to_net(family), net);
    }
}

/// A fast random number generator (xorshift), so that long histories cost little.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// A prefix in one of a few clumps, which contain whole subnets of hosts and nested prefixes, or
    /// elsewhere.
    fn prefix(&mut self, family: Family) -> Prefix {
        let max = u64::from(family.max_length());
        let length = match self.below(4) {
            0 => max,
            1 => max - self.below(9),
            2 => max / 2 + self.below(max / 2),
            _ => self.below(max + 1),
        } as u8;
        let clump = [0x0a00_0000u128, 0x0a01_0000, 0xfd00_1234, 0x2001_0db8][self.below(4) as usize] << 96;
        let spread = [4u32, 8, 11, 14][self.below(4) as usize];
        let low = u128::from(self.below(1 << spread));
        let bits = match family {
            Family::V4 => clump | low << 96,
            Family::V6 => clump | [low << 64, low, low << 40][self.below(3) as usize],
        };
        Prefix { bits: bits & mask(length), length }
    }
}

/// Adds and removes thousands of routes, so that the structure grows and shrinks through all forms.
fn run_long_history(family: Family, seed: u64) {
    let mut random = Random(seed);
    let mut pool = pool(1 << 17);
    let empty = pool.free_cells();
    let mut model = Model::new();
    for round in 0..6 {
        let grows = round % 2 == 0;
        for _ in 0..6000 {
            let count = model.len() as u32;
            if random.below(10) < if grows { 8 } else { 2 } {
                let (prefix, leaf) = (random.prefix(family), 1 + random.below(7) as u32);
                assert_eq!(
                    insert(&mut pool, root(family), count, prefix, leaf),
                    Ok(model.insert(prefix, leaf))
                );
            } else if let Some((&prefix, _)) = model.range(random.prefix(family)..).next() {
                assert_eq!(remove(&mut pool, root(family), count, prefix), Ok(model.remove(&prefix)));
            }
        }
        let all: Model = iter(pool.memory(), root(family)).collect();
        assert_eq!(all, model);
        let probes: Vec<u128> =
            (0..300).map(|_| random.prefix(family).bits | u128::from(random.below(4)) << 96).collect();
        for bits in probes {
            assert_eq!(find(pool.memory(), root(family), bits), longest(&model, bits), "{bits:032x}");
        }
        pool.flush().unwrap();
        let memory = pool.memory().clone();
        let before = memory.load64(0, root(family).offset);
        let mut reachable = ReachableCells::new(&memory);
        assert_eq!(adopt(&memory, root(family), &mut reachable), Ok(model.len() as u32));
        assert_eq!(cells_used(&memory, root(family)), empty - pool.free_cells());
        assert_eq!(memory.load64(0, root(family).offset), before);
        pool = Pool::with_reachable(memory, Box::new(Immediate), &reachable);
    }
    clear(&mut pool, root(family));
    pool.flush().unwrap();
    assert_eq!(pool.free_cells(), empty);
}

#[test]
fn long_histories_agree_with_a_linear_scan() {
    for seed in 1..4 {
        run_long_history(Family::V4, seed);
        run_long_history(Family::V6, seed << 32);
    }
}

/// Allocates every free cell that is not in the reserve.
fn exhaust(pool: &mut Pool) {
    while pool.allocate(1).is_ok() {}
}

#[test]
fn withdrawals_and_leaf_changes_work_in_full_memory() {
    for seed in 1..4 {
        let mut random = Random(seed << 20);
        let mut pool = pool(2048);
        let mut tables: Vec<(Root, Model)> = (0..12)
            .flat_map(|_| {
                let cell = pool.allocate(1).unwrap();
                (0..8).map(move |i| {
                    let family = if i % 2 == 0 { Family::V4 } else { Family::V6 };
                    (Root { cell, offset: i * 8, family }, Model::new())
                })
            })
            .collect();
        let mut failed = 0;
        while failed < 200 {
            // A few roots get directories, many get lists.
            let most = [4, tables.len() as u64][random.below(2) as usize];
            let (root, model) = &mut tables[random.below(most) as usize];
            let (prefix, leaf) = (random.prefix(root.family), 1 + random.below(7) as u32);
            match insert(&mut pool, *root, model.len() as u32, prefix, leaf) {
                Ok(old) => assert_eq!(old, model.insert(prefix, leaf)),
                Err(error) => {
                    assert!(matches!(error, Error::Full { .. }), "{error}");
                    failed += 1;
                }
            }
        }
        let forms = |form: fn(&RootForm) -> bool, pool: &Pool, tables: &[(Root, Model)]| {
            tables.iter().filter(|(root, _)| form(&root.load(pool.memory()).unwrap())).count()
        };
        assert!(forms(|form| matches!(form, RootForm::Directory(_)), &pool, &tables) >= 4);
        assert!(forms(|form| matches!(form, RootForm::Scan(_)), &pool, &tables) >= 20);
        exhaust(&mut pool);
        for (root, model) in &mut tables {
            let count = model.len() as u32;
            for (&prefix, leaf) in model {
                *leaf += 1;
                assert_eq!(insert(&mut pool, *root, count, prefix, *leaf), Ok(Some(*leaf - 1)));
                assert_eq!(leaf_of(pool.memory(), *root, prefix), Some(*leaf));
            }
        }
        let mut all: Vec<(usize, Prefix)> = (0..tables.len())
            .flat_map(|i| tables[i].1.keys().map(move |&prefix| (i, prefix)).collect::<Vec<_>>())
            .collect();
        while !all.is_empty() {
            let (i, prefix) = all.swap_remove(random.below(all.len() as u64) as usize);
            let (root, model) = &mut tables[i];
            let count = model.len() as u32;
            assert_eq!(remove(&mut pool, *root, count, prefix), Ok(model.remove(&prefix)));
            for bits in [prefix.bits, random.prefix(root.family).bits] {
                assert_eq!(find(pool.memory(), *root, bits), longest(model, bits), "{bits:032x}");
            }
            if random.below(8) == 0 {
                exhaust(&mut pool);
            }
        }
    }
}

/// An unfinished change can leave any inherited leaf wrong.
#[test]
fn adoption_repairs_inherited_leaves() {
    for family in [Family::V4, Family::V6] {
        let mut random = Random(7);
        let mut pool = pool(1 << 16);
        let mut model = Model::new();
        for _ in 0..3000 {
            let (prefix, leaf) = (random.prefix(family), 1 + random.below(7) as u32);
            insert(&mut pool, root(family), model.len() as u32, prefix, leaf).unwrap();
            model.insert(prefix, leaf);
        }
        let memory = pool.memory().clone();
        let RootForm::Directory(top) = root(family).load(&memory).unwrap() else { panic!("a directory") };
        for slot in 0..top.slots() {
            if random.below(2) == 0 {
                directory::set_inherited_below(&memory, top.slot(slot), top.bits, 9);
            }
        }
        let probes: Vec<_> = (0..2000).map(|_| random.prefix(family).bits).collect();
        let is_right = |bits: &u128| find(&memory, root(family), *bits) == longest(&model, *bits);
        assert!(!probes.iter().all(is_right), "no leaf was made wrong");
        adopt(&memory, root(family), &mut ReachableCells::new(&memory)).unwrap();
        for bits in probes {
            assert_eq!(find(&memory, root(family), bits), longest(&model, bits), "{bits:032x}");
        }
    }
}

#[test]
fn skip_to_an_impossible_depth_is_corrupt() {
    for family in [Family::V4, Family::V6] {
        let mut pool = pool(4096);
        // The prefixes have 24 bits in common, which a skip passes.
        for i in 0..40u32 {
            let prefix = Prefix { bits: u128::from(i) << 98, length: 30 };
            insert(&mut pool, root(family), i, prefix, 1).unwrap();
        }
        let memory = pool.memory().clone();
        let Ok(RootForm::Directory(top)) = root(family).load(&memory) else { panic!("a directory") };
        let Word::Skip(skip) = top.slot_of(0).word(&memory) else { panic!("a skip") };
        adopt(&memory, root(family), &mut ReachableCells::new(&memory)).unwrap();
        for depth in [u32::from(family.max_length()), 250, 256, 256 + 24, u32::MAX] {
            memory.store32(skip, offset_of!(layout::lpm_skip, depth), depth);
            let found = adopt(&memory, root(family), &mut ReachableCells::new(&memory));
            assert!(matches!(found, Err(Error::Corrupt(_))), "{depth}: {found:?}");
        }
    }
}

#[test]
fn root_form_follows_the_number_of_routes() {
    let mut pool = pool(4096);
    for family in [Family::V4, Family::V6] {
        let route = |i: u32| Prefix { bits: u128::from(i) << 108, length: 20 };
        let is_list = |pool: &Pool| matches!(root(family).load(pool.memory()), Ok(RootForm::Scan(_)));
        let most = scan::routes_max(family) as u32;
        for i in 0..=most {
            insert(&mut pool, root(family), i, route(i), 1).unwrap();
            assert_eq!(is_list(&pool), i < most);
        }
        for left in (0..=most).rev() {
            remove(&mut pool, root(family), left + 1, route(left)).unwrap();
            assert_eq!(is_list(&pool), (1..=most / 2).contains(&left), "{left} routes");
        }
        assert!(matches!(root(family).load(pool.memory()), Ok(RootForm::Empty)));
    }
}

#[test]
fn few_routes_take_one_or_two_cells() {
    let mut pool = pool(4096);
    for (routes, expected) in [(1, 1), (6, 1), (7, 2), (14, 2)] {
        clear(&mut pool, root(Family::V4));
        for i in 0..routes {
            let prefix = Prefix { bits: u128::from(i) << 108, length: 20 };
            insert(&mut pool, root(Family::V4), i, prefix, 1).unwrap();
        }
        assert_eq!(cells_used(pool.memory(), root(Family::V4)), expected, "{routes} routes");
    }
}

#[test]
fn loops_and_invalid_links_are_corrupt_and_readers_survive_them() {
    let mut pool = pool(4096);
    for i in 0..40u32 {
        let prefix = Prefix { bits: u128::from(i) << 96, length: 32 };
        insert(&mut pool, root(Family::V4), i, prefix, 1).unwrap();
    }
    let memory = pool.memory().clone();
    let Ok(RootForm::Directory(top)) = root(Family::V4).load(&memory) else { panic!("a directory") };
    let kinds = layout::LPM_SKIP..=layout::LPM_DIRECTORY8;
    for (kind, cell) in kinds.flat_map(|kind| [top.first, 4095, 100_000].map(|cell| (kind, cell))) {
        if kind == layout::LPM_DIRECTORY2 && cell == 4095 {
            // A fresh cell is an empty directory.
            continue;
        }
        let stray = kind << layout::LPM_KIND_SHIFT | cell;
        memory.store32(top.first, 4 * 5, stray);
        // A lookup behind the invalid link ends without a panic, and other slots still have their answers.
        let _any = find(&memory, root(Family::V4), 5 << 124);
        assert_eq!(find(&memory, root(Family::V4), 7 << 96), Some(1));
        let found = adopt(&memory, root(Family::V4), &mut ReachableCells::new(&memory));
        assert!(matches!(found, Err(Error::Corrupt(_))), "{stray:x}: {found:?}");
    }
}

/// Largest number of cells that a lookup in a structure reads that was built of these routes at once.
fn longest_search(pool: &mut Pool, family: Family, routes: &Model) -> u32 {
    merge(pool, root(family), routes.iter().map(|(prefix, leaf)| (*prefix, *leaf))).unwrap();
    let memory = pool.memory();
    let word = memory.load64(0, root(family).offset);
    let search = |bits| {
        let mut cells = 0;
        assert_eq!(find_from(memory, word, family, bits, &mut cells), longest(routes, bits).unwrap_or(0));
        cells
    };
    let most = probes(routes, family).into_iter().map(search).max().unwrap_or(0);
    clear(pool, root(family));
    most
}

/// What `cells.h` says of lookups in policies: they end after these numbers of cells, by the longest prefix. The routes
/// are on one path or leave it, a few bits apart, because then directories have two bits and buckets do not suffice.
#[test]
fn search_in_a_structure_that_was_built_at_once_is_bounded() {
    for (family, longest_prefix, limit) in [
        (Family::V4, 17, layout::POLICY_READS_IDENTITY),
        (Family::V4, 25, layout::POLICY_READS_SERVICE),
        (Family::V4, 32, layout::POLICY_READS_ADDRESS4),
        (Family::V6, 128, layout::POLICY_READS_ADDRESS6),
    ] {
        let mut random = Random(0x5eed);
        let mut pool = pool(1 << 16);
        let mut most = 0;
        for round in 0..400 {
            let path = u128::from(random.next()) << 64 | u128::from(random.next());
            let mut routes = Model::new();
            let mut length = 1 + random.below(8) as u8;
            let step = 1 + round % 8;
            while length <= longest_prefix && routes.len() < 400 {
                let leaves = random.below(3) > 0;
                let bits = path ^ if leaves { 1 << (128 - length) } else { 0 };
                routes.insert(Prefix { bits: bits & mask(length), length }, 1 + random.below(7) as u32);
                length += 1 + random.below(step) as u8;
            }
            for _ in 0..random.below(30) {
                let length = longest_prefix - random.below(2) as u8;
                let bits = path ^ u128::from(random.below(64)) << (128 - longest_prefix);
                routes.insert(Prefix { bits: bits & mask(length), length }, 9);
            }
            most = most.max(longest_search(&mut pool, family, &routes));
        }
        println!("{family:?}, prefixes of up to {longest_prefix} bits: {most} cells, at most {limit}");
        assert!(most <= limit && most * 2 >= limit, "{most} cells, and the limit is {limit}");
    }
}
