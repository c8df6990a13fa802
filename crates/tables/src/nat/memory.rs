//! The groups of blocks and the port words in memory: words, and reading blocks while packets write.

use super::NatBlock;
use crate::layout::{self, nat_block, nat_group, nat_tuples};
use crate::region::Region;
use sluice_types::Vni;
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const GROUP_BLOCKS: u32 = layout::NAT_GROUP_BLOCKS;

/// A block word: state, generation and tag (`nat_layout.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockWord(u64);

impl BlockWord {
    fn state(self) -> u32 {
        self.0 as u32 & layout::NAT_STATE_MASK
    }

    pub(super) fn is_free(self) -> bool {
        self.state() == layout::NAT_FREE
    }

    pub(super) fn is_withheld(self) -> bool {
        self.state() == layout::NAT_WITHHELD
    }

    pub(super) fn is_claimed(self) -> bool {
        self.state() == layout::NAT_CLAIMED
    }

    pub(super) fn is_owned(self) -> bool {
        self.state() == layout::NAT_OWNED
    }

    pub(super) fn is_closing(self) -> bool {
        self.state() == layout::NAT_CLOSING
    }

    /// Whether it is the block of an inside address for packets.
    pub(super) fn has_owner(self) -> bool {
        self.is_owned() || self.is_closing()
    }

    pub(super) fn is_closed(self) -> bool {
        self.state() == layout::NAT_CLOSED
    }

    fn with_state(self, state: u32) -> Self {
        Self(self.0 & !u64::from(layout::NAT_STATE_MASK) | u64::from(state))
    }

    pub(super) fn owned(self) -> Self {
        self.with_state(layout::NAT_OWNED)
    }

    pub(super) fn closing(self) -> Self {
        self.with_state(layout::NAT_CLOSING)
    }

    pub(super) fn closed(self) -> Self {
        self.with_state(layout::NAT_CLOSED)
    }

    /// The word of a free block after it was withheld from packets.
    pub(super) fn withheld(self) -> Self {
        self.with_state(layout::NAT_WITHHELD)
    }

    /// The word of a withheld block after packets may claim it.
    pub(super) fn free(self) -> Self {
        self.with_state(layout::NAT_FREE)
    }

    /// The word after the block was returned.
    pub(super) fn returned(self) -> Self {
        let generation = (self.0 as u32 >> layout::NAT_GENERATION_SHIFT).wrapping_add(1);
        let generation = generation & layout::NAT_GENERATION_MASK;
        Self(u64::from(generation << layout::NAT_GENERATION_SHIFT))
    }

    /// Whether the block was not returned between the two words.
    pub(super) fn is_same_life(self, other: Self) -> bool {
        self.with_state(0) == other.with_state(0)
    }
}

/// A port word, or the low half of a tuple word: inside port and stamp (`nat_layout.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortWord(pub u32);

impl PortWord {
    pub(super) fn inside_port(self) -> u16 {
        self.0 as u16
    }

    pub(super) fn stamp(self) -> u32 {
        self.0 >> layout::NAT_STAMP_SHIFT & layout::NAT_STAMP_MASK
    }

    /// Whether the port serves several inside ports, each to other remote endpoints.
    pub(super) fn is_shared(self) -> bool {
        self.0 & layout::NAT_SHARED != 0
    }

    pub(super) fn is_settled(self) -> bool {
        self.stamp() != 0 && self.stamp() < layout::NAT_TENTATIVE
    }

    /// Whether the agent must not free the word in this round (`nat_layout.h`).
    pub(super) fn is_used_in(self, round: u32) -> bool {
        self.stamp() == round || self.stamp() == layout::NAT_TENTATIVE | round & 1
    }

    /// The same if a word is kept for `held` rounds longer.
    pub(super) fn is_held_in(self, round: u32, held: u32) -> bool {
        const ROUNDS: u32 = layout::NAT_ROUND_MAX;
        self.is_used_in(round)
            || self.is_settled() && (round + ROUNDS).saturating_sub(self.stamp()) % ROUNDS <= held
    }

    pub(super) fn stamped(self, round: u32) -> Self {
        Self(self.0 & (layout::NAT_SHARED | 0xffff) | round << layout::NAT_STAMP_SHIFT)
    }
}

/// Where the word of a tuple is, an outside endpoint and a remote one: its two candidate buckets, and its tag.
pub(super) type TuplePlace = ([u32; 2], u32);

/// A block: its group, and its number in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockId {
    pub group: u32,
    pub slot: u32,
}

impl BlockId {
    /// The number of the block in the tables.
    pub(super) fn number(self) -> usize {
        (self.group * GROUP_BLOCKS + self.slot) as usize
    }
}

/// The blocks and ports of all public addresses.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    groups: Region,
    ports: Region,
    tuples: Region,
    count: u32,
    block_shift: u32,
}

impl Tables {
    /// The regions are large enough for this many groups, and for the ports of their addresses.
    pub(super) fn new([groups, ports, tuples]: [&Region; 3], count: u32, block_shift: u32) -> Self {
        Self { groups: groups.clone(), ports: ports.clone(), tuples: tuples.clone(), count, block_shift }
    }

    pub(super) fn groups(&self) -> u32 {
        self.count
    }

    pub(super) fn block_shift(&self) -> u32 {
        self.block_shift
    }

    /// Groups of a public address, as a shift.
    fn group_shift(&self) -> u32 {
        layout::NAT_BLOCK_SHIFT_MAX - self.block_shift
    }

    /// Numbers for public addresses.
    pub(super) fn addresses(&self) -> u32 {
        self.count >> self.group_shift()
    }

    /// The groups of a public address, by number.
    pub(super) fn groups_of(&self, address: u32) -> std::ops::Range<u32> {
        address << self.group_shift()..(address + 1) << self.group_shift()
    }

    /// The number of the public address of a group.
    pub(super) fn address_of(&self, group: u32) -> u32 {
        group >> self.group_shift()
    }

    /// Lays out numbers without public addresses.
    pub(super) fn clear(&self) {
        self.ports.zero(0, self.ports.bytes() / 8 * 8);
        self.tuples.zero(0, self.tuples.bytes() / 8 * 8);
        self.groups.zero(0, self.count as usize * size_of::<nat_group>());
        for id in self.all_blocks() {
            self.groups.store64(Self::word_at(id), BlockWord::default().withheld().0);
        }
    }

    /// Whether packets may use a block, if its number has a public address.
    pub(super) fn is_usable(&self, id: BlockId) -> bool {
        *self.port_range(id).start() >= layout::NAT_PORT_MIN as u16
    }

    /// Number of blocks of a public address that packets may claim.
    pub(super) fn usable_blocks(&self) -> u64 {
        let withheld = layout::NAT_PORT_MIN.div_ceil(1 << self.block_shift);
        u64::from((GROUP_BLOCKS << self.group_shift()) - withheld)
    }

    pub(super) fn blocks_of(group: u32) -> impl Iterator<Item = BlockId> {
        (0..GROUP_BLOCKS).map(move |slot| BlockId { group, slot })
    }

    pub(super) fn all_blocks(&self) -> impl Iterator<Item = BlockId> {
        (0..self.count).flat_map(Self::blocks_of)
    }

    fn group_at(group: u32, offset: usize) -> usize {
        group as usize * size_of::<nat_group>() + offset
    }

    /// The public address of a group; 0.0.0.0: it has none.
    pub(super) fn outside(&self, group: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.groups.load32(Self::group_at(group, offset_of!(nat_group, outside))))
    }

    pub(super) fn set_outside(&self, group: u32, outside: Ipv4Addr) {
        self.groups.store32(Self::group_at(group, offset_of!(nat_group, outside)), outside.into());
    }

    /// Whether a public address, by number, is taken out of use.
    pub(super) fn is_draining(&self, address: u32) -> bool {
        let at = Self::group_at(self.groups_of(address).start, offset_of!(nat_group, flags));
        self.groups.load32(at) & layout::NAT_DRAINING != 0
    }

    pub(super) fn set_draining(&self, address: u32, drains: bool) {
        let at = Self::group_at(self.groups_of(address).start, offset_of!(nat_group, flags));
        self.groups.store32(at, if drains { layout::NAT_DRAINING } else { 0 });
    }

    /// Whether packets may claim ports of a block of a public address, both by number.
    pub(super) fn is_own(&self, address: u32, block: u16) -> bool {
        let (group, slot) = (u32::from(block) / GROUP_BLOCKS, u32::from(block) % GROUP_BLOCKS);
        self.is_own_block(BlockId { group: self.groups_of(address).start + group, slot })
    }

    /// Whether packets may claim ports of a block, by its place.
    pub(super) fn is_own_block(&self, BlockId { group, slot }: BlockId) -> bool {
        self.groups.load32(Self::group_at(group, offset_of!(nat_group, others))) >> slot & 1 == 0
    }

    /// Sets of which blocks of a public address, by number, packets may claim ports: those for which `is_own` is true.
    pub(super) fn set_shares(&self, address: u32, is_own: impl Fn(u16) -> bool) {
        for (group, first) in self.groups_of(address).zip((0..).step_by(GROUP_BLOCKS as usize)) {
            let others = (0..GROUP_BLOCKS).filter(|slot| !is_own(first + *slot as u16));
            let others = others.fold(0, |others, slot| others | 1 << slot);
            self.groups.store32(Self::group_at(group, offset_of!(nat_group, others)), others);
        }
    }

    /// Sessions of a family of inside addresses that have begun at a public address, both by number.
    pub(super) fn begun_at(&self, address: u32, family: usize) -> u32 {
        let at = Self::group_at(self.groups_of(address).start, offset_of!(nat_group, begun));
        self.groups.load32(at + family * size_of::<u32>())
    }

    pub(super) fn set_ended_at(&self, address: u32, family: usize, ended: u32) {
        let at = Self::group_at(self.groups_of(address).start, offset_of!(nat_group, ended));
        self.groups.store32(at + family * size_of::<u32>(), ended);
    }

    fn word_at(id: BlockId) -> usize {
        id.group as usize * size_of::<nat_group>() + offset_of!(nat_group, word) + id.slot as usize * 8
    }

    fn field_at(id: BlockId, offset: usize) -> usize {
        id.group as usize * size_of::<nat_group>()
            + offset_of!(nat_group, block)
            + id.slot as usize * size_of::<nat_block>()
            + offset
    }

    pub(super) fn word(&self, id: BlockId) -> BlockWord {
        BlockWord(self.groups.load64(Self::word_at(id)))
    }

    /// Replaces the word `from` by `to`. Returns false if it is not `from`.
    pub(super) fn swap_word(&self, id: BlockId, from: BlockWord, to: BlockWord) -> bool {
        self.groups.compare_and_swap64(Self::word_at(id), from.0, to.0).is_ok()
    }

    /// Takes a block from its owner. Returns false if it has none. Only a packet that opens a closing block changes the word
    /// meanwhile, and only once.
    pub(super) fn close(&self, id: BlockId) -> bool {
        loop {
            let word = self.word(id);
            if !word.has_owner() || self.swap_word(id, word, word.closed()) {
                return word.has_owner();
            }
        }
    }

    /// The ports of a block.
    pub(super) fn port_range(&self, id: BlockId) -> std::ops::RangeInclusive<u16> {
        let groups = 1 << self.group_shift();
        let first = ((id.group % groups) * GROUP_BLOCKS + id.slot) << self.block_shift;
        first as u16..=(first + (1 << self.block_shift) - 1) as u16
    }

    /// The block of a port of a public address.
    pub(super) fn block_of(&self, address: u32, port: u16) -> Option<BlockId> {
        let block = u32::from(port) >> self.block_shift;
        let group = address.checked_mul(1 << self.group_shift())?.checked_add(block / GROUP_BLOCKS)?;
        (group < self.count).then_some(BlockId { group, slot: block % GROUP_BLOCKS })
    }

    /// Where the word of a port of this class (`NAT_TCP` and so on) is, of a block's public address.
    fn port_at(&self, group: u32, class: u32, port: u16) -> usize {
        let address = (group >> self.group_shift()) as usize;
        let number = (address * layout::NAT_CLASSES as usize + class as usize) * layout::NAT_PORTS as usize;
        (number + usize::from(port)) * 4
    }

    pub(super) fn port(&self, group: u32, class: u32, port: u16) -> PortWord {
        PortWord(self.ports.load32(self.port_at(group, class, port)))
    }

    /// Replaces a port word. Returns the word that was found if it was not `from`.
    pub(super) fn swap_port(
        &self,
        (group, class, port): (u32, u32, u16),
        from: PortWord,
        to: PortWord,
    ) -> Result<(), PortWord> {
        self.ports.compare_and_swap32(self.port_at(group, class, port), from.0, to.0).map_err(PortWord)
    }

    /// Buckets of tuple words.
    pub(super) fn tuple_buckets(&self) -> u32 {
        (self.tuples.bytes() / size_of::<nat_tuples>()) as u32
    }

    fn tuple_words(bucket: u32) -> impl Iterator<Item = usize> {
        let first = bucket as usize * size_of::<nat_tuples>();
        (0..layout::NAT_TUPLE_WORDS as usize).map(move |word| first + word * 8)
    }

    /// Stamps the word by which a tuple is of this inside port. Returns false if the tuple has no such word.
    pub(super) fn stamp_tuple(&self, (buckets, tag): TuplePlace, inside_port: u16, round: u32) -> bool {
        buckets.into_iter().flat_map(Self::tuple_words).any(|at| {
            loop {
                let seen = self.tuples.load64(at);
                let word = PortWord(seen as u32);
                let is_of_tuple = (seen >> layout::NAT_TUPLE_TAG_SHIFT) as u32 == tag;
                if word.0 == 0 || !is_of_tuple || word.inside_port() != inside_port {
                    return false;
                }
                let stamped =
                    u64::from(tag) << layout::NAT_TUPLE_TAG_SHIFT | u64::from(word.stamped(round).0);
                // A swap fails if a packet has settled the word, or has stamped it with this round, so this ends.
                if seen == stamped || self.tuples.compare_and_swap64(at, seen, stamped).is_ok() {
                    return true;
                }
            }
        })
    }

    /// Frees the tuple words of a bucket that were not used in this round. Returns their number, and that of the others.
    pub(super) fn free_tuples(&self, bucket: u32, round: u32) -> (u64, u64) {
        let (mut freed, mut used) = (0, 0);
        for at in Self::tuple_words(bucket) {
            let seen = self.tuples.load64(at);
            if seen == 0 {
                continue;
            }
            // The swap fails if a packet has stamped the word in between.
            let is_used = PortWord(seen as u32).is_used_in(round)
                || self.tuples.compare_and_swap64(at, seen, 0).is_err();
            used += u64::from(is_used);
            freed += u64::from(!is_used);
        }
        (freed, used)
    }

    /// The content of a block that has an owner; `None` if it has none, or was returned since `word` was loaded.
    pub(super) fn block(&self, id: BlockId, word: BlockWord) -> Option<NatBlock> {
        if word.has_owner() { self.content(id, word) } else { None }
    }

    /// The content of a block that was filled; `None` if it was returned since `word` was loaded.
    pub(super) fn content(&self, id: BlockId, word: BlockWord) -> Option<NatBlock> {
        let load32 = |offset| self.groups.load32(Self::field_at(id, offset));
        let load64 = |offset| self.groups.load64(Self::field_at(id, offset));
        let ended = load32(offset_of!(nat_block, ended));
        let owner = load32(offset_of!(nat_block, vni));
        let [high, low] = [0, 8].map(|at| load64(offset_of!(nat_block, inside) + at));
        let inside: IpAddr = if owner & layout::NAT_INSIDE_IPV6 == 0 {
            Ipv4Addr::from(low as u32).into()
        } else {
            Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into()
        };
        let block = NatBlock {
            vni: Vni::new(owner & layout::NAT_VNI_MASK).ok()?,
            inside,
            outside: self.outside(id.group),
            ports: self.port_range(id),
            claimed_at: load32(offset_of!(nat_block, claimed_at)),
            sessions: load32(offset_of!(nat_block, begun)).wrapping_sub(ended),
        };
        // This load comes after all loads above, and a block is filled only after it was returned.
        self.word(id).is_same_life(word).then_some(block)
    }

    /// Sessions that have begun in a block.
    pub(super) fn begun(&self, id: BlockId) -> u32 {
        self.groups.load32(Self::field_at(id, offset_of!(nat_block, begun)))
    }

    pub(super) fn set_ended(&self, id: BlockId, ended: u32) {
        self.groups.store32(Self::field_at(id, offset_of!(nat_block, ended)), ended);
    }

    pub(super) fn is_logged(&self, id: BlockId) -> bool {
        self.groups.load32(Self::field_at(id, offset_of!(nat_block, logged))) != 0
    }

    pub(super) fn set_logged(&self, id: BlockId) {
        self.groups.store32(Self::field_at(id, offset_of!(nat_block, logged)), 1);
    }
}
