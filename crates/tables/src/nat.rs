//! The agent's side of source NAT with sessions: VMs without a public address share those of a pool.
//!
//! `bpf/include/layout/nat_layout.h` has the layout and explains why concurrent access is safe, and
//! `bpf/include/common/nat.h` is the packets' side; this module changes with them. Packets claim blocks of ports, map ports and
//! begin sessions. The agent lays out the tables, finds out what is used no more and returns it, and adopts the tables of another
//! agent. Packets never wait for it.

mod addresses;
mod memory;
mod sweep;

#[cfg(test)]
mod tests;

pub use addresses::NumberedAddress;
pub use sweep::NatSwept;

use crate::error::Error;
use crate::grace::Grace;
use crate::layout::{self, nat_config};
use crate::region::Region;
use crate::seed::random_seed;
use crate::sessions::{Family, Fate, Flow, Session, SessionRegions, SessionUsage, Sessions, Timeouts};
use memory::Tables;
use sluice_types::Vni;
use std::collections::HashSet;
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use sweep::{Phase, Progress, Used};

const NS_PER_SECOND: u32 = 1_000_000_000;
/// After a pause, as many packets are passed on at once as in this part of a second.
const PASSED_AT_ONCE_PER_SECOND: u32 = 8;

/// For how much the tables have room. Constant as long as they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatSize {
    /// Public addresses that have a number at the same time, 1 to 4096.
    pub addresses: u32,
    /// Ports of a block: a power of 2, 64 to 4096. A VM has whole blocks, each of them for all protocols. Ports below 1024 and
    /// blocks that have some are not used.
    pub block_ports: u32,
}

impl NatSize {
    /// The logarithm of `block_ports`, if the size is valid.
    fn block_shift(self) -> Result<u32, Error> {
        let shift = self.block_ports.trailing_zeros();
        let (min, max) = (layout::NAT_BLOCK_SHIFT_MIN, layout::NAT_BLOCK_SHIFT_MAX);
        if !self.block_ports.is_power_of_two() || !(min..=max).contains(&shift) {
            let (ports, min, max) = (self.block_ports, 1 << min, 1 << max);
            return Err(Error::Invalid(format!(
                "a block of {ports} ports is not possible: it is a power of 2 from {min} to {max}"
            )));
        }
        let (count, max) = (self.addresses, layout::NAT_ADDRESSES_MAX);
        if !(1..=max).contains(&count) {
            return Err(Error::Invalid(format!(
                "room for {count} public addresses is not possible: 1 to {max} are"
            )));
        }
        Ok(shift)
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
    /// The map `nat_tuples`: as many elements as there are buckets of IPv4 sessions.
    pub tuples: Region,
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
    /// Size of a bucket of tuple words.
    pub const TUPLES_BYTES: usize = size_of::<layout::nat_tuples>();

    /// Elements of the map `nat_groups`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the size is not valid.
    pub fn groups(size: NatSize) -> Result<u32, Error> {
        let shift = size.block_shift()?;
        Ok(size.addresses << (layout::NAT_BLOCK_SHIFT_MAX - shift))
    }

    /// Elements of the map `nat_ports`.
    #[must_use]
    pub fn port_cells(size: NatSize) -> u32 {
        size.addresses * layout::NAT_CLASSES * layout::NAT_PORTS / layout::NAT_CELL_PORTS
    }

    /// Maps zeroed memory of this process of this size, and for this many buckets of sessions, and as many of NAT64.
    ///
    /// # Errors
    /// If the size is not valid, or the kernel refuses the mapping.
    pub fn anonymous(size: NatSize, buckets: u32) -> std::io::Result<Self> {
        let groups = Self::groups(size).map_err(std::io::Error::other)? as usize;
        Ok(Self {
            config: Region::anonymous(Self::CONFIG_BYTES)?,
            groups: Region::anonymous(groups * Self::GROUP_BYTES)?,
            ports: Region::anonymous(Self::port_cells(size) as usize * Self::CELL_BYTES)?,
            tuples: Region::anonymous(buckets as usize * Self::TUPLES_BYTES)?,
            sessions: SessionRegions::anonymous(buckets, buckets)?,
        })
    }

    /// True if tables have been laid out here. They are then adopted instead of created.
    #[must_use]
    pub fn is_laid_out(&self) -> bool {
        self.config.bytes() >= Self::CONFIG_BYTES
            && self.config.load64(offset_of!(nat_config, magic)) == layout::NAT_MAGIC
            && self.sessions.is_laid_out()
    }

    /// The tables of this size in this memory.
    fn tables(&self, size: NatSize) -> Result<Tables, Error> {
        let (groups, cells) = (Self::groups(size)?, Self::port_cells(size));
        let buckets = self.sessions.ipv4.bytes() / SessionRegions::BUCKET4_BYTES;
        for (name, region, needed) in [
            ("configuration", &self.config, Self::CONFIG_BYTES),
            ("blocks", &self.groups, groups as usize * Self::GROUP_BYTES),
            ("ports", &self.ports, cells as usize * Self::CELL_BYTES),
            ("tuples", &self.tuples, buckets * Self::TUPLES_BYTES),
        ] {
            if region.bytes() < needed {
                let found = region.bytes();
                return Err(Error::Invalid(format!(
                    "the memory of the {name} of address translation has {found} bytes, but needs {needed}"
                )));
            }
        }
        Ok(Tables::new([&self.groups, &self.ports, &self.tuples], groups, size.block_shift()?))
    }
}

/// A block of ports that an inside address has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatBlock {
    /// VNI of the VPC.
    pub vni: Vni,
    /// Address of the VM. NAT64: of IPv6.
    pub inside: IpAddr,
    /// Public address.
    pub outside: Ipv4Addr,
    /// Its ports, of all protocols.
    pub ports: RangeInclusive<u16>,
    /// When a packet claimed it, in ticks.
    pub claimed_at: u32,
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

/// A session and how it is translated. For ICMP, the inside and the outside port are identifiers, and the remote port is the type of
/// the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The session between the inside endpoint and the remote endpoint; its scope is the VNI. With NAT64, it is one of IPv6, in
    /// which the remote endpoint has an address of IPv6 ([`Translation::remote`] has that of IPv4).
    pub session: Session,
    /// The endpoint of the VM. NAT64: of IPv6.
    pub inside: SocketAddr,
    /// The outside endpoint.
    pub outside: SocketAddrV4,
    /// The remote endpoint.
    pub remote: SocketAddrV4,
    /// Whether a packet of the remote endpoint began the session.
    pub is_of_remote: bool,
    /// Whether the outside port serves several inside ports (endpoint-dependent mapping).
    pub is_shared: bool,
    /// The number of the public address.
    number: u32,
}

impl From<Session> for Translation {
    fn from(session: Session) -> Self {
        let ([address, action], flow) = (session.action, session.flow);
        let is_of_remote = action & layout::NAT_OF_REMOTE != 0;
        let is_shared = action & layout::NAT_OF_SHARED != 0;
        let (inside, remote) =
            if is_of_remote { (flow.destination, flow.source) } else { (flow.source, flow.destination) };
        let remote = match remote {
            SocketAddr::V4(remote) => remote,
            SocketAddr::V6(remote) => {
                SocketAddrV4::new((u128::from(*remote.ip()) as u32).into(), remote.port())
            }
        };
        let outside = SocketAddrV4::new(Ipv4Addr::from(address), action as u16);
        let number = action >> layout::NAT_ADDRESS_SHIFT & layout::NAT_ADDRESS_MASK;
        Self { session, inside, outside, remote, is_of_remote, is_shared, number }
    }
}

/// How much is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatUsage {
    /// The session table.
    pub sessions: SessionUsage,
    /// That of NAT64.
    pub sessions64: SessionUsage,
    /// Blocks that inside addresses have, as the last round of the sweep saw it.
    pub blocks: u64,
    /// Blocks of the public addresses that are assigned.
    pub blocks_total: u64,
    /// Ports of all protocols that are mapped, as the last round of the sweep saw it.
    pub ports: u64,
    /// Remote endpoints of shared ports of all protocols, as the last round of the sweep saw it.
    pub tuples: u64,
    /// Public addresses that have a number, with those whose number will be free.
    pub addresses: u32,
    /// Numbers for public addresses.
    pub addresses_total: u32,
}

/// The agent's side of the tables. There is one at a time.
pub struct Nat {
    config: Region,
    tables: Tables,
    sessions: Sessions,
    progress: Progress,
    shares: Option<Shares>,
    logs: Option<Logs>,
    /// Public addresses and numbers of their blocks that have forwarded ports.
    forwarded: HashSet<(Ipv4Addr, u16)>,
    /// Rounds for which ports are held.
    held_rounds: u32,
}

/// Whether packets give out the ports of a block, by the public address and the number of the block in it.
type Shares = Box<dyn Fn(Ipv4Addr, u16) -> bool + Send>;

/// Which gateway logs the blocks of a VPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedBy {
    /// This one.
    This,
    /// Another one, which owns the NAT gateway.
    Another,
    /// It is not known who has them, as after the end of a NAT gateway: what this one has logged before ends in its log.
    Unknown,
}

type Logs = Box<dyn Fn(Vni) -> LoggedBy + Send>;

impl Nat {
    /// Lays out empty tables without public addresses, at a time in ticks. Packets that use tables in this memory meanwhile are
    /// not translated. `seed` is a secret: a sender that knows it can predict ports, and fill chosen parts of the tables.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the size or the timeouts are not valid, or the memory is too small; [`Error::Grace`].
    pub fn create(
        regions: &NatRegions,
        size: NatSize,
        seed: u64,
        timeouts: &Timeouts,
        now: u32,
        grace: impl Grace + 'static,
    ) -> Result<Self, Error> {
        let tables = regions.tables(size)?;
        let config = regions.config.clone();
        close(&config);
        // An agent that was killed may have closed the tables just before.
        grace.wait()?;
        let sessions = Sessions::create(&regions.sessions, seed, timeouts, grace)?;
        sessions.doubt_resets();
        tables.clear();
        config.store32(offset_of!(nat_config, layout_version), layout::NAT_LAYOUT_VERSION);
        config.store32(offset_of!(nat_config, generation), 1);
        config.store32(offset_of!(nat_config, round), 1);
        config.store32(offset_of!(nat_config, round_at), now);
        Self::store_vpc_limits(&config, [0; 2]);
        config.store64(offset_of!(nat_config, port_seed), port_seed(seed));
        config.store32(offset_of!(nat_config, block_shift), tables.block_shift());
        open(&config, &tables);
        Ok(Self::with_tables(config, tables, sessions))
    }

    fn with_tables(config: Region, tables: Tables, sessions: Sessions) -> Self {
        let progress = Progress::default();
        Self {
            config,
            tables,
            sessions,
            progress,
            shares: None,
            logs: None,
            forwarded: HashSet::new(),
            held_rounds: 0,
        }
    }

    /// Adopts the tables of an earlier agent, or lays out new ones with a random seed. A session of an earlier agent has these
    /// timeouts from its next packet on, and at most these until then: other gateways compute from the expiry when the last packet came.
    ///
    /// # Errors
    /// As [`Nat::create`] and [`Nat::adopt`].
    pub fn open(
        regions: &NatRegions,
        size: NatSize,
        timeouts: &Timeouts,
        now: u32,
        grace: impl Grace + 'static,
    ) -> Result<Self, Error> {
        if !regions.is_laid_out() {
            return Self::create(regions, size, random_seed()?, timeouts, now, grace);
        }
        let mut nat = Self::adopt(regions, size, now, grace)?;
        if nat.sessions.timeouts() != *timeouts {
            nat.set_timeouts(timeouts)?;
            nat.sessions.limit_expiries(now);
        }
        Ok(nat)
    }

    /// Takes over tables that another agent left at any point of its work, while packets use them. Public addresses keep their
    /// numbers ([`Nat::addresses`]).
    ///
    /// # Errors
    /// [`Error::NotTables`], [`Error::LayoutVersion`] or [`Error::Invalid`] if the memory does not hold tables of
    /// this layout and size.
    pub fn adopt(
        regions: &NatRegions,
        size: NatSize,
        now: u32,
        grace: impl Grace + 'static,
    ) -> Result<Self, Error> {
        if !regions.is_laid_out() {
            return Err(Error::NotTables);
        }
        let config = regions.config.clone();
        let found = config.load32(offset_of!(nat_config, layout_version));
        if found != layout::NAT_LAYOUT_VERSION {
            return Err(Error::LayoutVersion { found, known: layout::NAT_LAYOUT_VERSION });
        }
        let shift = config.load32(offset_of!(nat_config, block_shift));
        let groups = config.load32(offset_of!(nat_config, groups));
        if shift != size.block_shift()? || groups != NatRegions::groups(size)? {
            let found = NatSize {
                addresses: groups >> layout::NAT_BLOCK_SHIFT_MAX.saturating_sub(shift),
                block_ports: 1_u32.checked_shl(shift).unwrap_or(0),
            };
            return Err(Error::Invalid(format!(
                "the tables of address translation were laid out for {} public addresses and blocks of {} ports, but {} and \
                 {} are demanded",
                found.addresses, found.block_ports, size.addresses, size.block_ports
            )));
        }
        let tables = regions.tables(size)?;
        let sessions = Sessions::adopt(&regions.sessions, now, grace)?;
        let generation = offset_of!(nat_config, generation);
        config.store32(generation, config.load32(generation).wrapping_add(1));
        Ok(Self::with_tables(config, tables, sessions))
    }

    /// Makes `seed` the secret of the tables ([`Nat::create`]). If they have another one, all sessions and blocks end, and
    /// packets that come meanwhile are not translated. Public addresses keep their numbers, except those that were released: these
    /// are free. Claims and returns of blocks are told to `log`. Returns whether the secret has changed.
    ///
    /// If the agent is killed in the middle, its successor lays out new tables ([`Nat::open`]), and the returns that were not
    /// logged before are never logged.
    ///
    /// # Errors
    /// [`Error::Grace`]. Nothing has changed then.
    pub fn set_seed(&mut self, seed: u64, now: u32, log: &mut dyn FnMut(NatEvent)) -> Result<bool, Error> {
        if self.config.load64(offset_of!(nat_config, port_seed)) == port_seed(seed) {
            return Ok(false);
        }
        let mut addresses: Vec<_> = self.addresses().collect();
        addresses.retain(|known| !known.is_released);
        close(&self.config);
        if let Err(error) = self.sessions.wait_for_packets() {
            open(&self.config, &self.tables);
            return Err(error);
        }
        self.log_returns(now, log);
        self.tables.clear();
        self.sessions.set_seed(seed);
        self.progress = Progress::default();
        self.config.store64(offset_of!(nat_config, port_seed), port_seed(seed));
        self.config.store32(offset_of!(nat_config, round_at), now);
        for NumberedAddress { address, number, .. } in addresses {
            self.give(number.into(), address, true);
        }
        open(&self.config, &self.tables);
        Ok(true)
    }

    /// Number of agents that these tables have had, including this one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.config.load32(offset_of!(nat_config, generation))
    }

    /// Changes the timeouts. They apply to a session from its next packet on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a timeout is out of bounds. Nothing has changed then.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        self.sessions.set_timeouts(timeouts)
    }

    /// Sets how many sessions each VPC may have, at all its public addresses, and how many besides of NAT64; remote endpoints may
    /// begin half as many. It applies to sessions that begin later. New tables have no such limits.
    pub fn limit_vpcs(&mut self, sessions: NonZeroU32, sessions64: NonZeroU32) {
        Self::store_vpc_limits(&self.config, [sessions.get(), sessions64.get()]);
    }

    fn store_vpc_limits(config: &Region, limits: [u32; layout::NAT_FAMILIES as usize]) {
        for (family, limit) in limits.into_iter().enumerate() {
            config.store32(offset_of!(nat_config, vpc_sessions) + family * size_of::<u32>(), limit);
        }
    }

    /// Sets how many packets of one VPC each processor passes on in a second to the gateway that owns its NAT gateway, and up to 125 ms' worth
    /// of them at once. `None`: as many as come, as with new tables.
    pub fn limit_passing(&mut self, per_second: Option<NonZeroU32>) {
        let (token_ns, burst) = per_second.map_or((0, 0), |rate| {
            ((NS_PER_SECOND / rate.get()).max(1), (rate.get() / PASSED_AT_ONCE_PER_SECOND).max(1))
        });
        self.config.store32(offset_of!(nat_config, pass_burst), burst);
        self.config.store32(offset_of!(nat_config, pass_token_ns), token_ns);
    }

    /// Asks which gateway logs the blocks of a VPC: for each block in each round. Otherwise this one logs all.
    pub fn log_blocks_of(&mut self, logged_by: impl Fn(Vni) -> LoggedBy + Send + 'static) {
        self.logs = Some(Box::new(logged_by));
    }

    /// Ends the session of a flow between an inside and a remote endpoint, as [`Sessions::remove`]. Its port is free after the
    /// next complete round of the sweep, if no other session uses it.
    pub fn remove(&mut self, flow: &Flow, now: u32) -> bool {
        self.sessions.remove(flow, now)
    }

    /// Ends the sessions in these buckets of the session table of a family for which `ends` is true, by the number of the slot
    /// ([`Sessions::review_slots`]) and the session. Their ports are free as after [`Nat::remove`].
    pub fn end_each(
        &mut self,
        family: Family,
        buckets: std::ops::Range<u32>,
        mut ends: impl FnMut(usize, &Translation) -> bool,
    ) {
        self.sessions.review_slots(family, buckets, |slot, session| {
            if ends(slot, &Translation::from(*session)) { Fate::Ends } else { Fate::Stays }
        });
    }

    /// Ports of a block.
    #[must_use]
    pub fn block_ports(&self) -> u32 {
        1 << self.tables.block_shift()
    }

    /// Ends the blocks for which `ends` is true, of those that inside addresses have when this is called, and all their sessions:
    /// those of a VM or of a VPC that is removed, so that the next one with its address or VNI inherits nothing. Packets that come
    /// meanwhile may claim other blocks. The blocks are free after the next complete round of the sweep. Returns their number. The
    /// sessions are looked at only if there is such a block.
    ///
    /// # Errors
    /// [`Error::Grace`]: the blocks may have ended already. Their sessions do in the next complete round.
    pub fn end(&mut self, ends: impl Fn(&NatBlock) -> bool) -> Result<u64, Error> {
        // The blocks that packets are claiming are complete then.
        self.sessions.wait_for_packets()?;
        let mut blocks = 0;
        for id in self.tables.all_blocks() {
            if self.tables.block(id, self.tables.word(id)).is_some_and(|block| ends(&block)) {
                self.tables.close(id);
                blocks += 1;
            }
        }
        if blocks == 0 {
            return Ok(0);
        }
        let waited = self.sessions.wait_for_packets();
        self.end_sessions(waited).map(|()| blocks)
    }

    /// Ends sessions whose block has no owner, after the result of the grace period since blocks were closed, after which no session
    /// begins in these.
    fn end_sessions(&mut self, waited: Result<(), Error>) -> Result<(), Error> {
        let tables = &self.tables;
        let ends = |session: &Session| {
            let Translation { number, outside, .. } = Translation::from(*session);
            tables.block_of(number, outside.port()).is_none_or(|id| !tables.word(id).has_owner())
        };
        let mut refreshed = 0;
        for family in [Family::Ipv4, Family::Ipv6] {
            let buckets = 0..self.sessions.buckets(family);
            let decide = |session: &Session| if ends(session) { Fate::Ends } else { Fate::Stays };
            refreshed += self.sessions.review(family, buckets, decide).refreshed;
        }
        if waited.is_err() || refreshed > 0 {
            // The present round may have looked at the sessions that are left, and must not free their ports.
            self.restart_round();
        }
        waited
    }

    fn restart_round(&mut self) {
        self.sessions.restart_sweep();
        self.progress.phase = Phase::Begin;
    }

    /// The session tables.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// All sessions, including those that have expired and are not yet swept.
    pub fn translations(&self) -> impl Iterator<Item = Translation> + '_ {
        self.sessions.reader().iter().map(Translation::from)
    }

    /// The blocks that inside addresses have. Those that change meanwhile may be included or not.
    pub fn blocks(&self) -> impl Iterator<Item = NatBlock> + '_ {
        self.tables.all_blocks().filter_map(|id| self.tables.block(id, self.tables.word(id)))
    }

    /// How much is used.
    #[must_use]
    pub fn usage(&self) -> NatUsage {
        let Used { blocks, ports, tuples } = self.progress.used();
        let [sessions, sessions64] = [Family::Ipv4, Family::Ipv6].map(|family| self.sessions.usage(family));
        let addresses = self.addresses().count() as u32;
        let blocks_total = u64::from(addresses) * self.tables.usable_blocks();
        NatUsage {
            sessions,
            sessions64,
            blocks,
            blocks_total,
            ports,
            tuples,
            addresses,
            addresses_total: self.tables.addresses(),
        }
    }
}

/// Takes the tables out of use. Packets that came before may still use them for a grace period.
fn close(config: &Region) {
    config.store64(offset_of!(nat_config, magic), 0);
    // While there are no groups, nothing is translated.
    config.store32(offset_of!(nat_config, groups), 0);
}

/// Lets packets use the tables.
fn open(config: &Region, tables: &Tables) {
    config.store32(offset_of!(nat_config, groups), tables.groups());
    config.store64(offset_of!(nat_config, magic), layout::NAT_MAGIC);
}

/// The secret of cells and ports. Different seeds have different ones, so it tells what the seed of the tables is.
fn port_seed(seed: u64) -> u64 {
    seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15
}

impl std::fmt::Debug for Nat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nat").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}
