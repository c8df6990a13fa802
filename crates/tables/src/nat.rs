//! The agent's side of source NAT with sessions: VMs without a public address share those of a pool.
//!
//! `bpf/include/layout/nat_layout.h` has the layout and explains why concurrent access is safe, and
//! `bpf/include/common/nat.h` is the packets' side; this module changes with them. Packets claim blocks of ports, map ports and
//! begin sessions. The agent lays out the tables, finds out what is used no more and returns it, and adopts the tables of another
//! agent. Packets never wait for it.

mod memory;
mod sweep;

#[cfg(test)]
mod tests;

pub use sweep::NatSwept;

use crate::error::Error;
use crate::grace::Grace;
use crate::layout::{self, nat_config};
use crate::region::Region;
use crate::sessions::{Family, Fate, Flow, Session, SessionRegions, SessionUsage, Sessions, Timeouts};
use memory::Tables;
use sluice_types::Vni;
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::RangeInclusive;
use sweep::{Phase, Progress};

/// The addresses that VMs share. Constant as long as the tables exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatPool {
    /// Different public addresses, 1 to 4096.
    pub addresses: Vec<Ipv4Addr>,
    /// Ports of a block: a power of 2, 64 to 4096. A VM has whole blocks, each of them for all protocols. Ports below 1024 and
    /// blocks that have some are not used.
    pub block_ports: u32,
}

impl NatPool {
    /// The pool, if it is valid: the logarithm of `block_ports`.
    fn block_shift(&self) -> Result<u32, Error> {
        let shift = self.block_ports.trailing_zeros();
        let (min, max) = (layout::NAT_BLOCK_SHIFT_MIN, layout::NAT_BLOCK_SHIFT_MAX);
        if !self.block_ports.is_power_of_two() || !(min..=max).contains(&shift) {
            let (ports, min, max) = (self.block_ports, 1 << min, 1 << max);
            return Err(Error::Invalid(format!(
                "a block of {ports} ports is not possible: it is a power of 2 from {min} to {max}"
            )));
        }
        let (count, max) = (self.addresses.len(), layout::NAT_ADDRESSES_MAX as usize);
        if !(1..=max).contains(&count) {
            return Err(Error::Invalid(format!(
                "a pool of {count} public addresses is not possible: 1 to {max} are"
            )));
        }
        let mut sorted = self.addresses.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::Invalid(format!("the public address {} is in the pool twice", pair[0]))),
            None => Ok(shift),
        }
    }
}

/// What an inside address (of a VM in its VPC) may have, and what packets from the Internet may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatSettings {
    /// Sessions of an inside address, at least 1. Those that began since the last round of the sweep may count twice, and those
    /// that ended since count. While several processors begin sessions at the same moment, there may be as many more as there are
    /// processors. If no round was complete for 10 minutes, the number is not limited.
    pub sessions: u32,
    /// Packets from the Internet begin no session if the inside address has this many sessions. If it is less than `sessions`,
    /// remote endpoints cannot use up what the VM may have.
    pub remote_sessions: u32,
    /// Blocks of an inside address, 1 to 16. Several processors at the same moment: as for `sessions`.
    pub blocks: u32,
    /// Packets from any remote endpoint to a mapped port begin a session (RFC 4787: endpoint-independent filtering). Otherwise
    /// the VM must have sent to that endpoint first (address and port-dependent filtering).
    pub any_remote: bool,
    /// What the blocks are claimed by: the gateway in the upper 32 bits, the epoch of its lease in the lower ones.
    pub lease: u64,
}

impl NatSettings {
    fn store(&self, config: &Region) -> Result<(), Error> {
        if !(1..=layout::NAT_BLOCKS_MAX).contains(&self.blocks) || self.sessions == 0 {
            let (sessions, blocks, max) = (self.sessions, self.blocks, layout::NAT_BLOCKS_MAX);
            return Err(Error::Invalid(format!(
                "limits of {sessions} sessions and {blocks} blocks of an inside address are not possible: it has at least one \
                 session, and 1 to {max} blocks"
            )));
        }
        config.store64(offset_of!(nat_config, lease), self.lease);
        config.store32(offset_of!(nat_config, sessions_limit), self.sessions);
        config.store32(offset_of!(nat_config, remote_limit), self.remote_sessions.min(self.sessions));
        config.store32(offset_of!(nat_config, blocks_limit), self.blocks);
        let flags = if self.any_remote { layout::NAT_ANY_REMOTE } else { 0 };
        config.store32(offset_of!(nat_config, flags), flags);
        Ok(())
    }
}

/// Timeouts of translated sessions: as [`Timeouts::default`], but UDP has 5 minutes in both states (RFC 4787 REQ-5 c).
#[must_use]
pub fn default_timeouts() -> Timeouts {
    Timeouts { udp_one_way_s: 300, ..Timeouts::default() }
}

/// The memory of the tables; in an agent, the maps of `bpf/include/common/nat_maps.h`.
#[derive(Clone, Debug)]
pub struct NatRegions {
    /// The map `nat_config`: at least [`NatRegions::CONFIG_BYTES`].
    pub config: Region,
    /// The map `nat_groups`: [`NatRegions::groups`] elements.
    pub groups: Region,
    /// The map `nat_ports`: [`NatRegions::port_cells`] elements.
    pub ports: Region,
    /// The session tables, which are of no other use.
    pub sessions: SessionRegions,
}

impl NatRegions {
    /// Size of the configuration.
    pub const CONFIG_BYTES: usize = size_of::<nat_config>();
    /// Size of a group of 16 blocks.
    pub const GROUP_BYTES: usize = size_of::<layout::nat_group>();
    /// Size of a cell of 16 port words.
    pub const CELL_BYTES: usize = size_of::<layout::nat_ports>();

    /// Elements of the map `nat_groups` for a pool.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pool is not valid.
    pub fn groups(pool: &NatPool) -> Result<u32, Error> {
        Ok((pool.addresses.len() as u32) << (layout::NAT_BLOCK_SHIFT_MAX - pool.block_shift()?))
    }

    /// Elements of the map `nat_ports` for a pool.
    #[must_use]
    pub fn port_cells(pool: &NatPool) -> u32 {
        pool.addresses.len() as u32 * layout::NAT_CLASSES * layout::NAT_PORTS / layout::NAT_CELL_PORTS
    }

    /// Maps zeroed memory of this process for a pool and this many buckets of sessions.
    ///
    /// # Errors
    /// If the pool is not valid, or the kernel refuses the mapping.
    pub fn anonymous(pool: &NatPool, buckets: u32) -> std::io::Result<Self> {
        let groups = Self::groups(pool).map_err(std::io::Error::other)? as usize;
        Ok(Self {
            config: Region::anonymous(Self::CONFIG_BYTES)?,
            groups: Region::anonymous(groups * Self::GROUP_BYTES)?,
            ports: Region::anonymous(Self::port_cells(pool) as usize * Self::CELL_BYTES)?,
            sessions: SessionRegions::anonymous(buckets, 2)?,
        })
    }

    /// True if tables have been laid out here. They are then adopted instead of created.
    #[must_use]
    pub fn is_laid_out(&self) -> bool {
        self.config.bytes() >= Self::CONFIG_BYTES
            && self.config.load64(offset_of!(nat_config, magic)) == layout::NAT_MAGIC
            && self.sessions.is_laid_out()
    }

    /// The tables of a pool in this memory.
    fn tables(&self, pool: &NatPool) -> Result<Tables, Error> {
        let (groups, cells) = (Self::groups(pool)?, Self::port_cells(pool));
        for (name, region, needed) in [
            ("configuration", &self.config, Self::CONFIG_BYTES),
            ("blocks", &self.groups, groups as usize * Self::GROUP_BYTES),
            ("ports", &self.ports, cells as usize * Self::CELL_BYTES),
        ] {
            if region.bytes() < needed {
                let found = region.bytes();
                return Err(Error::Invalid(format!(
                    "the memory of the {name} of address translation has {found} bytes, but needs {needed}"
                )));
            }
        }
        Ok(Tables::new(self.groups.clone(), self.ports.clone(), groups, pool.block_shift()?))
    }
}

/// A block of ports that an inside address has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatBlock {
    /// VNI of the VPC.
    pub vni: Vni,
    /// Address of the VM.
    pub inside: Ipv4Addr,
    /// Public address.
    pub outside: Ipv4Addr,
    /// Its ports, of all protocols.
    pub ports: RangeInclusive<u16>,
    /// When a packet claimed it, in ticks.
    pub claimed_at: u32,
    /// [`NatSettings::lease`] at that time.
    pub lease: u64,
    /// Sessions of its ports. Those that began since the last round of the sweep may count twice.
    pub sessions: u32,
}

/// An event for the log by which the holder of an outside endpoint at some time is found later (RFC 6888 REQ-12, RFC 7422). Each
/// event comes at least once: one that an agent logged before it was killed may come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatEvent {
    /// A block was claimed, at `claimed_at`.
    Claimed(NatBlock),
    /// The block was returned, at this time in ticks. The last session of it ended before.
    Returned(NatBlock, u32),
}

/// A session and how it is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The session between the inside endpoint and the remote endpoint; its scope is the VNI.
    pub session: Session,
    /// The outside endpoint. For ICMP, the port is the identifier.
    pub outside: SocketAddrV4,
}

/// How much is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatUsage {
    /// The session table.
    pub sessions: SessionUsage,
    /// Blocks that inside addresses have, as the last round of the sweep saw it.
    pub blocks: u64,
    /// Blocks of the pool.
    pub blocks_total: u64,
    /// Ports of all protocols that are mapped, as the last round of the sweep saw it.
    pub ports: u64,
}

/// The agent's side of the tables. There is one at a time.
pub struct Nat {
    config: Region,
    tables: Tables,
    sessions: Sessions,
    progress: Progress,
}

impl Nat {
    /// Lays out empty tables, at a time in ticks. No packet may use them meanwhile. `seed` is a secret: a sender that knows it can predict ports,
    /// and fill chosen parts of the tables.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pool, the settings or the timeouts are not valid, or the memory is too small.
    pub fn create(
        regions: &NatRegions,
        pool: &NatPool,
        seed: u64,
        (settings, timeouts): (&NatSettings, &Timeouts),
        now: u32,
        grace: impl Grace + 'static,
    ) -> Result<Self, Error> {
        let tables = regions.tables(pool)?;
        let config = regions.config.clone();
        config.store64(offset_of!(nat_config, magic), 0);
        // While there are no groups, nothing is translated.
        config.store32(offset_of!(nat_config, groups), 0);
        settings.store(&config)?;
        let sessions = Sessions::create(&regions.sessions, seed, timeouts, grace)?;
        sessions.doubt_resets();
        tables.clear(&pool.addresses);
        config.store32(offset_of!(nat_config, layout_version), layout::NAT_LAYOUT_VERSION);
        config.store32(offset_of!(nat_config, generation), 1);
        config.store32(offset_of!(nat_config, round), 1);
        config.store32(offset_of!(nat_config, round_at), now);
        config.store64(offset_of!(nat_config, port_seed), seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15);
        config.store32(offset_of!(nat_config, block_shift), tables.block_shift());
        config.store32(offset_of!(nat_config, groups), tables.groups());
        config.store64(offset_of!(nat_config, magic), layout::NAT_MAGIC);
        Ok(Self { config, tables, sessions, progress: Progress::default() })
    }

    /// Takes over tables that another agent left at any point of its work, while packets use them.
    ///
    /// # Errors
    /// [`Error::NotTables`], [`Error::LayoutVersion`], [`Error::Corrupt`] or [`Error::Invalid`] if the memory does not hold
    /// tables of this layout and pool.
    pub fn adopt(
        regions: &NatRegions,
        pool: &NatPool,
        now: u32,
        grace: impl Grace + 'static,
    ) -> Result<Self, Error> {
        let tables = regions.tables(pool)?;
        if !regions.is_laid_out() {
            return Err(Error::NotTables);
        }
        let config = regions.config.clone();
        let found = config.load32(offset_of!(nat_config, layout_version));
        if found != layout::NAT_LAYOUT_VERSION {
            return Err(Error::LayoutVersion { found, known: layout::NAT_LAYOUT_VERSION });
        }
        let laid_out = [offset_of!(nat_config, block_shift), offset_of!(nat_config, groups)]
            .map(|offset| config.load32(offset));
        if laid_out != [tables.block_shift(), tables.groups()] || !tables.are_of(&pool.addresses) {
            return Err(Error::Corrupt(
                "the ports were laid out for another pool of public addresses".into(),
            ));
        }
        let sessions = Sessions::adopt(&regions.sessions, now, grace)?;
        let generation = offset_of!(nat_config, generation);
        config.store32(generation, config.load32(generation).wrapping_add(1));
        Ok(Self { config, tables, sessions, progress: Progress::default() })
    }

    /// Number of agents that these tables have had, including this one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.config.load32(offset_of!(nat_config, generation))
    }

    /// Changes what inside addresses may have. What they have beyond it already, they keep.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a limit is out of bounds. Nothing has changed then.
    pub fn set_settings(&mut self, settings: &NatSettings) -> Result<(), Error> {
        settings.store(&self.config)
    }

    /// Changes the timeouts. They apply to a session from its next packet on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a timeout is out of bounds. Nothing has changed then.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        self.sessions.set_timeouts(timeouts)
    }

    /// Ends the session of a flow between an inside and a remote endpoint, as [`Sessions::remove`]. Its port is free after the
    /// next complete round of the sweep, if no other session uses it.
    pub fn remove(&mut self, flow: &Flow, now: u32) -> bool {
        self.sessions.remove(flow, now)
    }

    /// Ends all sessions and blocks that inside addresses of a VPC have when this is called: those of one address, or of all. The
    /// next VM with this address inherits nothing. Packets of it that come meanwhile may claim other blocks. The blocks are free
    /// after the next complete round of the sweep. Returns their number.
    ///
    /// # Errors
    /// [`Error::Grace`]: the blocks may have ended already. Their sessions do in the next complete round, or by another call.
    pub fn end(&mut self, vni: Vni, inside: Option<Ipv4Addr>) -> Result<u64, Error> {
        // The blocks that packets are claiming are complete then.
        self.sessions.wait_for_packets()?;
        let ends = |block: &NatBlock| block.vni == vni && inside.is_none_or(|inside| block.inside == inside);
        let mut blocks = 0;
        for id in self.tables.all_blocks() {
            let mut word = self.tables.word(id);
            if self.tables.block(id, word).is_some_and(|block| ends(&block)) {
                // Only a packet that opens a closing block changes the word meanwhile, and only once.
                while !self.tables.swap_word(id, word, word.closed()) {
                    word = self.tables.word(id);
                }
                blocks += 1;
            }
        }
        let waited = self.sessions.wait_for_packets();
        // No session begins in these blocks any more.
        let tables = &self.tables;
        let is_of_none = |session: &Session| {
            let (address, port) = (session.action[1] >> 16, session.action[1] as u16);
            session.flow.scope == vni.get()
                && tables.block_of(address, port).is_none_or(|id| !tables.word(id).has_owner())
        };
        let buckets = 0..self.sessions.buckets(Family::Ipv4);
        let reviewed = self.sessions.review(Family::Ipv4, buckets, |session| {
            if is_of_none(session) { Fate::Ends } else { Fate::Stays }
        });
        if waited.is_err() || reviewed.refreshed > 0 {
            // The present round may have looked at the sessions that are left, and must not free their ports.
            self.sessions.restart_sweep();
            self.progress.phase = Phase::Begin;
        }
        waited.map(|()| blocks)
    }

    /// The session tables.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// All sessions, including those that have expired and are not yet swept.
    pub fn translations(&self) -> impl Iterator<Item = Translation> + '_ {
        self.sessions.reader().iter().map(|session| Translation {
            session,
            outside: SocketAddrV4::new(Ipv4Addr::from(session.action[0]), session.action[1] as u16),
        })
    }

    /// The blocks that inside addresses have. Those that change meanwhile may be included or not.
    pub fn blocks(&self) -> impl Iterator<Item = NatBlock> + '_ {
        self.tables.all_blocks().filter_map(|id| self.tables.block(id, self.tables.word(id)))
    }

    /// How much is used.
    #[must_use]
    pub fn usage(&self) -> NatUsage {
        let (blocks, ports) = self.progress.used();
        let sessions = self.sessions.usage(Family::Ipv4);
        NatUsage { sessions, blocks, blocks_total: self.tables.usable_blocks(), ports }
    }
}

impl Translation {
    /// The inside endpoint and the remote endpoint, seen from a VM with this address and port.
    fn is_of(session: &Session, inside: (Ipv4Addr, u16)) -> bool {
        let is_inside = |end: SocketAddr| end == SocketAddr::from((inside.0, inside.1));
        is_inside(session.flow.source) || is_inside(session.flow.destination)
    }
}

impl std::fmt::Debug for Nat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nat").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}
