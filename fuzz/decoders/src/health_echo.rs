//! Datagrams of the echo by which nodes check the ways between them. An input is a datagram.

use sluice_agent::health::echo::{ECHO_BYTES_MAX, ECHO_BYTES_MIN, Echo, make_answer, parse, request};

pub fn run(data: &[u8]) {
    let Some(echo) = parse(data) else { return };
    assert!((ECHO_BYTES_MIN..=ECHO_BYTES_MAX).contains(&data.len()), "{} bytes were read", data.len());
    let mut answer = data.to_vec();
    make_answer(&mut answer);
    assert_eq!(answer.len(), data.len(), "an answer is as long as its request");
    let Some(Echo::Answer(nonce)) = parse(&answer) else { panic!("the answer is not one") };
    if let Echo::Answer(own) = echo {
        assert_eq!(answer, data, "an answer was changed");
        assert_eq!(own, nonce);
    }
    let mut again = request(&nonce, data.len());
    assert_eq!((again.len(), parse(&again)), (data.len(), Some(Echo::Request)));
    make_answer(&mut again);
    assert_eq!(parse(&again), Some(Echo::Answer(nonce)), "made again");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let nonce = std::array::from_fn(|at| at as u8);
    let mut seeds = Vec::new();
    for bytes in [ECHO_BYTES_MIN, 1472, ECHO_BYTES_MAX] {
        let mut datagram = request(&nonce, bytes);
        seeds.push(datagram.clone());
        make_answer(&mut datagram);
        seeds.push(datagram);
    }
    seeds
}
