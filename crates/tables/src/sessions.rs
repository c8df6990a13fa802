//! The agent's side of the session table: connections that packets create, and look up from either direction.
//!
//! `bpf/include/layout/session_layout.h` has the layout and explains why concurrent access is safe, and
//! `bpf/include/common/sessions.h` is the packets' side; this module changes with them. The agent lays out
//! the tables, sweeps expired sessions, reads, removes, and adopts the tables of another agent. Packets never
//! wait for it.
//!
//! The life of a slot (each step is one compare-and-swap of its tag word):
//!
//! ```text
//!           packet                 packet: the record is complete
//!   empty -----------> claimed ----------------------------------> live --+
//!     ^                                                           |  ^    | packet: refreshes
//!     |                                                           |  +----+ the expiry
//!     |                              expired: sweep or a creator  |
//!     |                              ended: packet                |
//!     |                              duplicate: packet            |
//!     |                              removed: agent               v
//!     +---- sweep: a grace period after it saw the slot dying -- dying
//!           (or claimed, and it still is: its packet was killed)
//! ```
//!
//! Each time a slot becomes empty its generation is incremented.
//!
//! Times are in ticks of 1/8 s of `CLOCK_MONOTONIC` ([`ticks_now`]), as 32 bits that wrap after 17 years.

mod install;
mod key;
mod phase;
mod reader;
mod review;
mod shares;
mod sweep;
mod table;
mod timeouts;

#[cfg(test)]
mod tests;

pub use crate::region::Region;
pub use install::Installed;
pub use key::{Family, Flow};
pub use phase::Phase;
pub use reader::{Iter, SessionReader};
pub use review::{Fate, Reviewed};
pub use shares::{SessionShares, Share};
pub use sweep::{DYING_MAX, Swept};
pub use timeouts::Timeouts;

use crate::error::Error;
use crate::grace::Grace;
use crate::layout::{self, session_config};
use crate::seed::random_seed;
use key::{Hashing, Key};
use std::mem::{offset_of, size_of};
use sweep::Progress;
use table::{SLOTS, Table};

/// Attempts to remove a session that packets refresh at the same time.
const REMOVE_ATTEMPTS: u32 = 64;

/// The number of a slot in its family's table.
fn slot_number(bucket: u32, slot: u32) -> usize {
    bucket as usize * SLOTS as usize + slot as usize
}

/// The memory of the session tables; in an agent, the maps of `bpf/include/common/session_maps.h`.
#[derive(Clone, Debug)]
pub struct SessionRegions {
    /// The map `session_config`: at least [`SessionRegions::CONFIG_BYTES`].
    pub config: Region,
    /// The map `sessions4`.
    pub ipv4: Region,
    /// The map `sessions6`.
    pub ipv6: Region,
}

impl SessionRegions {
    /// Size of the configuration.
    pub const CONFIG_BYTES: usize = size_of::<session_config>();
    /// Size of a bucket of 7 IPv4 sessions.
    pub const BUCKET4_BYTES: usize = Family::Ipv4.bucket_bytes();
    /// Size of a bucket of 7 IPv6 sessions.
    pub const BUCKET6_BYTES: usize = Family::Ipv6.bucket_bytes();

    /// Maps zeroed memory of this process for this many buckets of each family.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn anonymous(buckets4: u32, buckets6: u32) -> std::io::Result<Self> {
        Ok(Self {
            config: Region::anonymous(Self::CONFIG_BYTES)?,
            ipv4: Region::anonymous(buckets4 as usize * Self::BUCKET4_BYTES)?,
            ipv6: Region::anonymous(buckets6 as usize * Self::BUCKET6_BYTES)?,
        })
    }

    /// True if session tables have been laid out here. They are then adopted instead of created.
    #[must_use]
    pub fn is_laid_out(&self) -> bool {
        self.config.bytes() >= Self::CONFIG_BYTES
            && self.config.load64(offset_of!(session_config, magic)) == layout::SESSIONS_MAGIC
    }

    /// Number of buckets that the memory can hold, by family.
    fn capacity(&self) -> Result<[u32; 2], Error> {
        if self.config.bytes() < Self::CONFIG_BYTES {
            return Err(Error::Invalid(format!(
                "the configuration of the session tables has {} bytes, but needs {}",
                self.config.bytes(),
                Self::CONFIG_BYTES
            )));
        }
        let count = |region: &Region, bytes: usize| {
            u32::try_from(region.bytes() / bytes).ok().filter(|&buckets| buckets >= 2).ok_or_else(|| {
                let min = 2 * bytes;
                Error::Invalid(format!(
                    "the memory of a session table has {} bytes, but needs at least {min}: two buckets",
                    region.bytes()
                ))
            })
        };
        Ok([count(&self.ipv4, Self::BUCKET4_BYTES)?, count(&self.ipv6, Self::BUCKET6_BYTES)?])
    }
}

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the originator, which sent the first packet of the session.
    Original,
    /// To the originator.
    Reply,
}

/// A session as it was at one moment. Its counters may have been read a little later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Flow of the originator's packets.
    pub flow: Flow,
    /// Time of creation, in ticks.
    pub created_at: u32,
    /// Time at which the session expires unless a packet refreshes it, in ticks.
    pub expires_at: u32,
    /// `SESSION_REPLIED` and the other bits of `session_layout.h`.
    pub state: u32,
    /// Numbers of packets from and to the originator.
    pub packets: [u64; 2],
    /// Numbers of bytes from and to the originator, as the packet program counts them.
    pub bytes: [u64; 2],
    /// Data that the creator stored for its own use.
    pub action: [u32; 2],
    /// Number of earlier sessions in the slot, modulo 2^14.
    pub generation: u16,
}

/// Number of sessions in a family's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionUsage {
    /// Live sessions that have not expired. Each bucket counts as the sweep last saw it.
    pub live: u64,
    /// Capacity. The share of new sessions whose buckets are both full is about 1 in 10^5 at 68% of the
    /// capacity, 1 in 10^3 at 75% and 1 in 7 at 90%, so a table should be used up to two thirds.
    pub slots: u64,
    /// Sessions that could not be created because both of their buckets were full, or the room beyond what is assured.
    pub full_events: u64,
}

/// Events that packets counted since the tables were laid out, for both families together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Operations that were given up because other packets changed the same words too often.
    pub busy: u64,
    /// Records that were ended because another packet had created the same session.
    pub duplicates: u64,
}

/// The present time in ticks, as packets read it.
#[must_use]
pub fn ticks_now() -> u32 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to `now`, which outlives the call. CLOCK_MONOTONIC always
    // exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let ticks = now.tv_sec.cast_unsigned() * u64::from(layout::SESSION_TICKS_PER_SECOND)
        + now.tv_nsec.cast_unsigned() / u64::from(layout::SESSION_TICK_NS);
    ticks as u32
}

/// The agent's side of the tables. There is one at a time.
pub struct Sessions {
    config: Region,
    reader: SessionReader,
    grace: Box<dyn Grace>,
    progress: Progress,
    shares: Option<SessionShares>,
}

impl Sessions {
    /// Takes over the tables of another agent, or lays out empty ones with a random seed. Sessions are counted in `shares`,
    /// which packets of the same programs count in.
    ///
    /// # Errors
    /// As [`Sessions::adopt`] and [`Sessions::create`].
    pub fn open(
        regions: &SessionRegions,
        shares: SessionShares,
        now: u32,
        grace: impl Grace + 'static,
    ) -> Result<Self, Error> {
        let mut sessions = if regions.is_laid_out() {
            Self::adopt(regions, now, grace)?
        } else {
            // While there are no tables, packets begin no sessions.
            shares.clear();
            Self::create(regions, random_seed()?, &Timeouts::default(), grace)?
        };
        shares.complete(&sessions.config, &sessions.reader.tables);
        sessions.shares = Some(shares);
        Ok(sessions)
    }

    /// Lays out empty tables with as many buckets as the memory can hold. Sessions in the memory are lost,
    /// and no packet may use the tables meanwhile. `seed` is a secret: a sender that knows it can fill chosen
    /// buckets.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the memory is too small or a timeout is out of bounds.
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
        // While the number of buckets is 0, packets find and create no sessions.
        config.store64(offset_of!(session_config, buckets4), 0);
        let hashing = Hashing::from_seed(seed);
        let reader = SessionReader::new(regions, [buckets4, buckets6]);
        reader.tables.iter().for_each(Table::clear);
        let content = session_config {
            layout_version: layout::SESSIONS_LAYOUT_VERSION,
            generation: 1,
            hash_key: hashing.hash_key,
            seed: hashing.seed,
            timeouts,
            ..Default::default()
        };
        config.store64(offset_of!(session_config, emptying), 0);
        timeouts::write_config(config, &content);
        config.store32(offset_of!(session_config, buckets6), buckets6);
        config.store32(offset_of!(session_config, buckets4), buckets4);
        config.store64(offset_of!(session_config, magic), layout::SESSIONS_MAGIC);
        let progress = Progress::new(&reader.tables);
        Ok(Self { config: config.clone(), reader, grace: Box::new(grace), progress, shares: None })
    }

    /// Takes over tables that another agent left at any point of its work, while packets use them. Counts the
    /// sessions, which reads one cache line of each bucket. The next sweep empties the slots that are dying.
    ///
    /// # Errors
    /// [`Error::NotTables`], [`Error::LayoutVersion`], [`Error::Corrupt`] or [`Error::Invalid`] if the memory
    /// does not hold tables of this layout and size.
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
                "the session tables were laid out for {buckets:?} buckets (IPv4, IPv6), \
                 but the memory has {capacity:?}"
            )));
        }
        let generation = offset_of!(session_config, generation);
        config.store32(generation, load32(generation).wrapping_add(1));
        let reader = SessionReader::new(regions, buckets);
        let mut progress = Progress::new(&reader.tables);
        progress.count(&reader.tables, now);
        Ok(Self { config: config.clone(), reader, grace: Box::new(grace), progress, shares: None })
    }

    /// Number of agents that these tables have had, including this one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.config.load32(offset_of!(session_config, generation))
    }

    /// The timeouts that packets use.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        Timeouts::load(&self.config)
    }

    /// Changes the timeouts. They apply to a session from its next packet on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a timeout is out of bounds. Nothing has changed then.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        timeouts.store(&self.config)
    }

    /// Lets no session live longer than if its last packet came now: some may have an expiry by longer timeouts of an earlier agent.
    pub fn limit_expiries(&self, now: u32) {
        let timeouts = self.timeouts();
        for table in &self.reader.tables {
            let slots = (0..table.buckets).flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot)));
            for (bucket, slot) in slots {
                let word = table.word(bucket, slot);
                if !word.is_live() {
                    continue;
                }
                let (protocol, state) = table.protocol_and_state(bucket, slot);
                let latest = now.wrapping_add(timeouts.of(protocol, state));
                if word.expires_at().wrapping_sub(latest).cast_signed() > 0 {
                    // If it fails, a packet has refreshed the session by its timeout, or ended it.
                    let _ = table.compare_and_swap(bucket, slot, word, word.expiring(latest));
                }
            }
        }
    }

    /// Ends all sessions and frees their slots at once; later ones are found by this secret. No packet may use the tables meanwhile,
    /// and sessions must not be counted in shares. An agent that is killed in between leaves tables that are of no use.
    pub(crate) fn set_seed(&mut self, seed: u64) {
        self.reader.tables.iter().for_each(Table::clear);
        Hashing::from_seed(seed).store(&self.config);
        self.progress = Progress::new(&self.reader.tables);
    }

    /// A TCP session that was reset is open again when another segment follows (`SESSION_RST_IN_DOUBT`): the Internet can forge an
    /// RST, and a SYN after it.
    pub fn doubt_resets(&self) {
        self.config.store32(offset_of!(session_config, flags), layout::SESSION_RST_IN_DOUBT);
    }

    /// A reader, which other threads may use as well.
    #[must_use]
    pub fn reader(&self) -> &SessionReader {
        &self.reader
    }

    /// Number of sessions in a family's table.
    #[must_use]
    pub fn usage(&self, family: Family) -> SessionUsage {
        let full = offset_of!(session_config, full) + family.index() * 8;
        SessionUsage {
            live: self.progress.live(family),
            slots: u64::from(self.reader.tables[family.index()].buckets) * u64::from(SLOTS),
            full_events: self.config.load64(full),
        }
    }

    /// Events that packets counted.
    #[must_use]
    pub fn counters(&self) -> SessionCounters {
        SessionCounters {
            busy: self.config.load64(offset_of!(session_config, busy)),
            duplicates: self.config.load64(offset_of!(session_config, duplicates)),
        }
    }

    /// Ends the session of a flow of either direction. Packets that found it before may still be in flight.
    /// Returns false if there is no such session, or if packets refreshed it at each of 64 attempts.
    pub fn remove(&mut self, flow: &Flow, now: u32) -> bool {
        let Some(key) = Key::of(flow) else { return false };
        let (table, candidates) = self.reader.candidates(&key);
        for _ in 0..REMOVE_ATTEMPTS {
            // A search misses a session if its record dies while packets store another one for it in a slot that
            // the search has passed. A second search finds the other one.
            let search = || table.find(&key, &candidates, now);
            let Some((bucket, slot, word)) = search().or_else(search) else { return false };
            if table.compare_and_swap(bucket, slot, word, word.dying()).is_ok() {
                self.progress.session_removed(key.family, bucket);
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
