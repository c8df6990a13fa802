//! The session table: connections that packets create and look up themselves,
//! from either direction. `bpf/include/session_layout.h` has the layout and the
//! argument why it is safe, `bpf/include/sessions.h` the packets' side; here is
//! the agent's: it lays the tables out, sweeps what has expired, reads, removes,
//! and adopts what a predecessor left. None of it makes a packet wait.
//!
//! Times are in ticks of 1/8 s of `CLOCK_MONOTONIC` ([`ticks_now`]), 32 bits
//! that wrap after 17 years.

mod key;
mod reader;
mod sweep;
mod table;
mod timeouts;

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;

pub use crate::region::Region;
pub use key::{Family, Flow};
pub use reader::{Iter, SessionReader};
pub use sweep::{DYING_MAX, Swept};
pub use timeouts::Timeouts;

use crate::error::Error;
use crate::grace::Grace;
use crate::layout::{self, session_config};
use key::{Hashing, Key};
use std::mem::{offset_of, size_of};
use sweep::Progress;
use table::{SLOTS, Table};

const REMOVE_ATTEMPTS: u32 = 64;

/// The memory of the tables: in an agent, the maps of `bpf/include/session_maps.h`.
#[derive(Clone, Debug)]
pub struct SessionRegions {
    /// `session_config`: at least [`SessionRegions::CONFIG_BYTES`].
    pub config: Region,
    /// `sessions4`.
    pub ipv4: Region,
    /// `sessions6`.
    pub ipv6: Region,
}

impl SessionRegions {
    /// Length of the configuration.
    pub const CONFIG_BYTES: usize = size_of::<session_config>();
    /// Length of a bucket of 7 IPv4 sessions.
    pub const BUCKET4_BYTES: usize = Family::Ipv4.bucket_bytes();
    /// Length of a bucket of 7 IPv6 sessions.
    pub const BUCKET6_BYTES: usize = Family::Ipv6.bucket_bytes();

    /// Fresh memory of this process for that many buckets of each family.
    ///
    /// # Errors
    /// When the kernel refuses the mapping.
    pub fn anonymous(buckets4: u32, buckets6: u32) -> std::io::Result<Self> {
        Ok(Self {
            config: Region::anonymous(Self::CONFIG_BYTES)?,
            ipv4: Region::anonymous(buckets4 as usize * Self::BUCKET4_BYTES)?,
            ipv6: Region::anonymous(buckets6 as usize * Self::BUCKET6_BYTES)?,
        })
    }

    /// True when tables have been laid out here: adopt them; else create them.
    #[must_use]
    pub fn is_laid_out(&self) -> bool {
        self.config.bytes() >= Self::CONFIG_BYTES
            && self.config.load64(offset_of!(session_config, magic)) == layout::SESSIONS_MAGIC
    }

    /// Buckets that the memory has room for, by family.
    fn capacity(&self) -> Result<[u32; 2], Error> {
        if self.config.bytes() < Self::CONFIG_BYTES {
            return Err(Error::Invalid(format!(
                "the configuration of the session tables has {} bytes, {} are needed",
                self.config.bytes(),
                Self::CONFIG_BYTES
            )));
        }
        let count = |region: &Region, bytes: usize| {
            u32::try_from(region.bytes() / bytes)
                .ok()
                .filter(|&buckets| buckets >= 2)
                .ok_or_else(|| Error::Invalid(format!("no session table has {} bytes", region.bytes())))
        };
        Ok([count(&self.ipv4, Self::BUCKET4_BYTES)?, count(&self.ipv6, Self::BUCKET6_BYTES)?])
    }
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the originator: the sender of the session's first packet.
    Original,
    /// To it.
    Reply,
}

/// A session, as it was at one moment; the counters may be of moments a little later than one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The originator's packets.
    pub flow: Flow,
    /// When it was created, in ticks.
    pub created_at: u32,
    /// When it ends if no packet comes, in ticks.
    pub expires_at: u32,
    /// `SESSION_REPLIED` and the other bits of `session_layout.h`.
    pub state: u32,
    /// Packets from the originator, and to it.
    pub packets: [u64; 2],
    /// Bytes likewise, as those who counted meant them.
    pub bytes: [u64; 2],
    /// What the creator stored for itself.
    pub action: [u32; 2],
    /// How often the slot was used before, modulo 2^14.
    pub generation: u16,
}

/// How full a family's table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFill {
    /// Live sessions, each bucket as the sweep last saw it, those past their time left out.
    pub live: u64,
    /// Capacity. Of sessions that are to be created, the part whose buckets are
    /// both full is about 1 in 10^5 at 68% of it, 1 in 10^3 at 75%, 1 in 7 at
    /// 90%: size the table for two thirds.
    pub slots: u64,
    /// Sessions that could not be created because both their buckets were full.
    pub full_events: u64,
}

/// What packets counted since the tables were laid out, both families together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Operations given up because others changed the same words too often.
    pub busy: u64,
    /// Records that died because another packet created the same session.
    pub duplicates: u64,
}

/// The present moment in ticks, as packets take it.
#[must_use]
pub fn ticks_now() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that outlives the call; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let ticks = now.tv_sec.cast_unsigned() * u64::from(layout::SESSION_TICKS_PER_SECOND)
        + now.tv_nsec.cast_unsigned() / u64::from(layout::SESSION_TICK_NS);
    ticks as u32
}

/// The agent's side of the tables. One at a time.
pub struct Sessions {
    config: Region,
    reader: SessionReader,
    grace: Box<dyn Grace>,
    progress: Progress,
}

impl Sessions {
    /// Lays out empty tables of as many buckets as the memory has. `seed` is
    /// secret: who knows it can fill chosen buckets. Sessions that are in the
    /// memory are lost; no packet may use the tables meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the memory is too small or a timeout out of bounds.
    pub fn create(
        regions: &SessionRegions,
        seed: u64,
        timeouts: &Timeouts,
        grace: impl Grace + 'static,
    ) -> Result<Self, Error> {
        let [buckets4, buckets6] = regions.capacity()?;
        let timeouts = timeouts.to_layout()?;
        let config = &regions.config;
        config.store64(offset_of!(session_config, magic), 0);
        // Without buckets packets find nothing and create nothing.
        config.store64(offset_of!(session_config, buckets4), 0);
        let hashing = Hashing::from_seed(seed);
        let reader = SessionReader::new(regions, hashing, [buckets4, buckets6]);
        reader.tables.iter().for_each(Table::clear);
        let content = session_config {
            layout_version: layout::SESSIONS_LAYOUT_VERSION,
            generation: 1,
            hash_key: hashing.hash_key,
            seed: hashing.seed,
            timeouts,
            ..Default::default()
        };
        timeouts::write_config(config, &content);
        config.store32(offset_of!(session_config, buckets6), buckets6);
        config.store32(offset_of!(session_config, buckets4), buckets4);
        config.store64(offset_of!(session_config, magic), layout::SESSIONS_MAGIC);
        let progress = Progress::new(&reader.tables);
        Ok(Self { config: config.clone(), reader, grace: Box::new(grace), progress })
    }

    /// Takes over tables that a predecessor left, at any point of its work,
    /// while packets use them. Counts the sessions, which reads one cache line
    /// of each bucket; what was dying becomes empty by the next sweep.
    ///
    /// # Errors
    /// If the memory does not hold tables of this layout and size.
    pub fn adopt(regions: &SessionRegions, now: u32, grace: impl Grace + 'static) -> Result<Self, Error> {
        let capacity = regions.capacity()?;
        if !regions.is_laid_out() {
            return Err(Error::NotTables);
        }
        let config = &regions.config;
        let load32 = |offset| config.load32(offset);
        let found = load32(offset_of!(session_config, layout_version));
        if found != layout::SESSIONS_LAYOUT_VERSION {
            return Err(Error::LayoutVersion { found, known: layout::SESSIONS_LAYOUT_VERSION });
        }
        let buckets =
            [load32(offset_of!(session_config, buckets4)), load32(offset_of!(session_config, buckets6))];
        if buckets != capacity {
            return Err(Error::Corrupt(format!(
                "the session tables were laid out for {buckets:?} buckets, the memory has {capacity:?}"
            )));
        }
        let key = offset_of!(session_config, hash_key);
        let hashing = Hashing {
            hash_key: std::array::from_fn(|i| config.load64(key + i * 8)),
            seed: config.load64(offset_of!(session_config, seed)),
        };
        let generation = offset_of!(session_config, generation);
        config.store32(generation, load32(generation).wrapping_add(1));
        let reader = SessionReader::new(regions, hashing, buckets);
        let mut progress = Progress::new(&reader.tables);
        progress.count(&reader.tables, now);
        Ok(Self { config: config.clone(), reader, grace: Box::new(grace), progress })
    }

    /// Agents that have had these tables, this one included.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.config.load32(offset_of!(session_config, generation))
    }

    /// The timeouts that packets use.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        Timeouts::load(&self.config)
    }

    /// Changes the timeouts; sessions follow with their next packets.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one is out of bounds; then nothing changes.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        timeouts.store(&self.config)
    }

    /// Reading, also by other threads.
    #[must_use]
    pub fn reader(&self) -> &SessionReader {
        &self.reader
    }

    /// How full a family's table is.
    #[must_use]
    pub fn fill(&self, family: Family) -> SessionFill {
        let full = offset_of!(session_config, full) + family.index() * 8;
        SessionFill {
            live: self.progress.live(family),
            slots: u64::from(self.reader.tables[family.index()].buckets) * u64::from(SLOTS),
            full_events: self.config.load64(full),
        }
    }

    /// What packets counted.
    #[must_use]
    pub fn counters(&self) -> SessionCounters {
        SessionCounters {
            busy: self.config.load64(offset_of!(session_config, busy)),
            duplicates: self.config.load64(offset_of!(session_config, duplicates)),
        }
    }

    /// Ends a session, given the flow of either direction. Packets that had
    /// found it before may still be under way. False: there was none, or packets
    /// refreshed it at each of 64 attempts.
    pub fn remove(&mut self, flow: &Flow, now: u32) -> bool {
        let Some(key) = Key::of(flow) else { return false };
        let (table, place) = self.reader.place(&key);
        for _ in 0..REMOVE_ATTEMPTS {
            let Some((bucket, slot, word)) = table.find(&key, &place, now) else { return false };
            if table.swap(bucket, slot, word, word.dying()).is_ok() {
                self.progress.lost_one(key.family, bucket);
                return true;
            }
        }
        false
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("progress", &self.progress).finish_non_exhaustive()
    }
}
