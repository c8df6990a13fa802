//! Runs every fuzz target on its seeds and on seeds with changes, always the same ones. This takes a second and finds
//! what a change breaks at once; `scripts/fuzz.sh` looks for more.

use sluice_fuzz_decoders::TARGETS;

/// Changed inputs of each target.
const CHANGED: usize = 20_000;

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

/// Changes an input in one to four places: flips a bit, sets a byte, cuts the end off, repeats a part, or continues
/// with another input.
fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len());
        match random.below(5) {
            0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
            1 if !input.is_empty() => input[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'{'][random.below(7)],
            2 => input.truncate(at),
            3 => {
                let part = input[at..(at + random.below(16)).min(input.len())].to_vec();
                input.splice(at..at, part);
            }
            _ => input.splice(at.., other[random.below(other.len())..].iter().copied()).for_each(drop),
        }
    }
}

fn replay(name: &str) {
    let target = TARGETS.into_iter().find(|target| target.name == name).expect("a target has this name");
    let seeds = (target.seeds)();
    seeds.iter().for_each(|seed| (target.run)(seed));
    let mut random = Random(0x5eed);
    for _ in 0..CHANGED {
        let mut input = seeds[random.below(seeds.len())].clone();
        change(&mut input, &seeds[random.below(seeds.len())], &mut random);
        (target.run)(&input);
    }
}

#[test]
fn decoders_of_the_southbound_stream_agree_with_its_encoders() {
    replay("southbound");
}

#[test]
fn decoders_of_the_cluster_protocol_agree_with_its_encoders() {
    replay("cluster");
}

#[test]
fn decoders_of_rsp_agree_with_its_encoders() {
    replay("rsp");
}

#[test]
fn decoders_of_copied_sessions_agree_with_their_encoders() {
    replay("nat_sync");
}

#[test]
fn decoders_of_reported_meters_agree_with_their_encoders() {
    replay("meter_reports");
}

#[test]
fn decoders_of_migrations_agree_with_their_encoders() {
    replay("migration");
}

#[test]
fn decoders_of_the_health_echo_agree_with_its_encoders() {
    replay("health_echo");
}

#[test]
fn decoders_of_requests_refuse_what_is_wrong() {
    replay("api");
}
