//! Endpoints for the exact match, generated from their numbers, so that 10M of them take memory only in the
//! tables.

use crate::data::{Draw, Family, Key, Random, scramble};
use sluice_bench_report::shell::Failure;
use sluice_tables::{Endpoint, Lookup, NodeTables, Role};
use sluice_types::{MacAddr, Vni, ipv6_from_halves};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Hosts over which endpoints are spread.
const HOSTS: usize = 256;
/// Endpoints added in one call.
const CHUNK: usize = 1 << 16;

/// `count` endpoints of one VNI.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// VNI of the endpoints.
    pub vni: u32,
    /// Family of the addresses.
    pub family: Family,
    /// Number of endpoints, at most 2^30.
    pub count: usize,
}

fn host(number: usize) -> IpAddr {
    Ipv4Addr::from(0xac10_0001 + number as u32).into()
}

impl Endpoints {
    /// Address of the endpoint with this number; all are different.
    pub fn key(self, number: usize) -> Key {
        match self.family {
            // An odd factor permutes the 30-bit numbers.
            Family::V4 => {
                let scattered = (number as u64).wrapping_mul(0x9e37_79b1) & 0x3fff_ffff;
                Key { high: 0, low: 0x0100_0000 + scattered }
            }
            Family::V6 => Key { high: 0xfd00_0000_0000_0001, low: scramble(number as u64) },
        }
    }

    fn endpoint(self, vni: Vni, number: usize) -> Endpoint {
        let key = self.key(number);
        let address = match self.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(key.low as u32)),
            Family::V6 => IpAddr::V6(ipv6_from_halves(key.high, key.low)),
        };
        Endpoint { vni, address, mac: MacAddr::local(number as u64), host: host(number % HOSTS) }
    }

    /// Draws keys among the endpoints.
    pub fn keys(self, seed: u64, draw: Draw, count: usize) -> Vec<Key> {
        let mut random = Random::new(scramble(seed));
        (0..count).map(|_| self.key(draw.index(&mut random, self.count))).collect()
    }

    /// Adds all endpoints to tables. Returns the time that the tables took for it.
    ///
    /// # Errors
    /// Errors of the tables.
    pub fn add_to(self, tables: &mut NodeTables) -> Result<Duration, Failure> {
        let vni = Vni::new(self.vni)?;
        for number in 0..HOSTS {
            tables.upsert_vtep(host(number), Role::Host)?;
        }
        let mut took = Duration::ZERO;
        let mut chunk = Vec::with_capacity(CHUNK);
        for first in (0..self.count).step_by(CHUNK) {
            chunk.clear();
            chunk.extend((first..self.count.min(first + CHUNK)).map(|number| self.endpoint(vni, number)));
            let start = Instant::now();
            let bulk = tables.upsert_endpoints(&chunk);
            took += start.elapsed();
            if bulk.failed > 0 {
                return Err(format!("{} endpoints did not fit: {:?}", bulk.failed, bulk.errors).into());
            }
        }
        Ok(took)
    }
}

/// The expected answers for endpoints, which depend on the cells of their hosts.
pub struct EndpointAnswers {
    cells: Vec<u32>,
}

impl EndpointAnswers {
    /// The answers of tables that [`Endpoints::add_to`] filled.
    ///
    /// # Errors
    /// If a host is missing.
    pub fn of(tables: &NodeTables) -> Result<Self, Failure> {
        let reader = tables.reader();
        let cells = (0..HOSTS).map(|number| match reader.find(0, host(number)) {
            Lookup::Hit(hit) => Ok(hit.cell),
            other => Err(format!("host {number} is not in the tables: {other:?}").into()),
        });
        Ok(Self { cells: cells.collect::<Result<_, Failure>>()? })
    }

    /// MAC, and cell of the next hop, of the endpoint with this number.
    pub fn answer(&self, number: usize) -> (u64, u32) {
        (MacAddr::local(number as u64).to_u64(), self.cells[number % HOSTS])
    }
}
