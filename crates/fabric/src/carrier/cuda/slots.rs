//! Allocations that the peer knows already: what lies in one is offered by its ticket alone.
//!
//! A packet may name a *slot* for the allocation that it is about. From then on a ticket says the slot and
//! an offset, and no packet is sent. A slot is given to another allocation once all that was offered by it
//! is over. Tickets and packets travel apart, so both have the slot's *generation*: the reader of a
//! ticket whose generation has not come waits for its packet.

use std::collections::HashMap;

use backhaul_cuda::{Export, Handle};

/// A slot and its generation
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Slot {
    pub(super) number: u8,
    pub(super) generation: u16,
}

/// Content of a ticket
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Ticket {
    /// A packet says the rest
    Counted(u64),
    /// An offset in the allocation of a slot
    Known(Slot, u64),
    /// An address of this process
    Local(u64),
}

/// The slots of the allocations that were exported
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// By the id of the export
    by_id: HashMap<u64, u8>,
    slots: Vec<Used>,
    uses: u64,
    /// Offers by any of them that are not over
    outstanding: u32,
}

#[derive(Debug)]
struct Used {
    id: u64,
    generation: u16,
    /// Offers by it that are not over
    outstanding: u32,
    last_use: u64,
}

/// How an allocation can be named to the peer
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Naming {
    /// By this ticket
    Known(u64),
    /// By a packet that gives it this slot
    Named(Slot),
    /// By a packet, each time
    Unnamed,
}

impl Ticket {
    pub(super) fn decode(ticket: u64) -> Self {
        let at = ticket & OFFSET_MAX;
        let number = (ticket >> NUMBER_SHIFT) as u8 & NUMBER_MASK;
        let generation = (ticket >> OFFSET_BITS) as u16 & GENERATION_MASK;
        match (ticket & KNOWN != 0, number) {
            (false, _) => Self::Counted(ticket),
            (true, NUMBER_MASK) => Self::Local(at),
            (true, number) => Self::Known(Slot { number, generation }, at),
        }
    }

    /// The ticket of an address of this process, if it fits
    pub(super) fn local(address: u64) -> Option<u64> {
        let fits = address <= OFFSET_MAX;
        fits.then_some(KNOWN | u64::from(NUMBER_MASK) << NUMBER_SHIFT | address)
    }

    fn known(slot: Slot, offset: u64) -> u64 {
        let (number, generation) = (u64::from(slot.number), u64::from(slot.generation));
        KNOWN | number << NUMBER_SHIFT | generation << OFFSET_BITS | offset
    }
}

impl Slots {
    /// How to name the place of an export; what is known is outstanding from now on
    pub(super) fn name(&mut self, export: &Export) -> Naming {
        let is_lasting = match export.handle {
            Handle::Legacy(_) | Handle::Descriptor(_) => true,
            // Each message opens it anew.
            Handle::Pool { .. } => false,
        };
        if !is_lasting || export.allocation_bytes > OFFSET_MAX {
            return Naming::Unnamed;
        }
        self.uses += 1;
        if let Some(number) = self.by_id.get(&export.id).copied() {
            let used = &mut self.slots[usize::from(number)];
            used.last_use = self.uses;
            used.outstanding += 1;
            self.outstanding += 1;
            let generation = used.generation;
            return Naming::Known(Ticket::known(Slot { number, generation }, export.offset));
        }
        match self.free_slot(export.id) {
            Some(slot) => Naming::Named(slot),
            None => Naming::Unnamed,
        }
    }

    /// An offer by a slot is over
    pub(super) fn release(&mut self, slot: Slot) {
        let used = self.slots.get_mut(usize::from(slot.number));
        let used = used.filter(|used| used.generation == slot.generation);
        if let Some(used) = used.filter(|used| used.outstanding > 0) {
            used.outstanding -= 1;
            self.outstanding -= 1;
        }
    }

    /// Returns whether the peer may be about to fetch something
    pub(super) fn is_any_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Gives an allocation a slot: a new one, or that which was not used for longest
    fn free_slot(&mut self, id: u64) -> Option<Slot> {
        let number = match u8::try_from(self.slots.len()) {
            Ok(number) if number < SLOTS_MAX => {
                self.slots.push(Used {
                    id,
                    generation: 0,
                    outstanding: 0,
                    last_use: self.uses,
                });
                number
            }
            _ => {
                let idle = self.slots.iter_mut().enumerate();
                let idle = idle.filter(|(_, used)| used.outstanding == 0);
                let (number, used) = idle.min_by_key(|(_, used)| used.last_use)?;
                self.by_id.remove(&used.id);
                used.id = id;
                used.generation = (used.generation + 1) & GENERATION_MASK;
                used.last_use = self.uses;
                u8::try_from(number).ok()?
            }
        };
        self.by_id.insert(id, number);
        let generation = self.slots[usize::from(number)].generation;
        Some(Slot { number, generation })
    }
}

/// The slots of the peer
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<u8, (u16, Result<Export, String>)>);

impl Known {
    /// Remembers what a packet gave a slot, or why it cannot be used
    pub(super) fn learn(&mut self, slot: Slot, export: Result<Export, String>) {
        self.0.insert(slot.number, (slot.generation, export));
    }

    /// Finds the place at an offset in the allocation of a slot; `None` if its packet has not come
    pub(super) fn find(&self, slot: Slot, offset: u64) -> Option<Result<Export, String>> {
        let (generation, export) = self.0.get(&slot.number)?;
        let is_it = *generation == slot.generation;
        let at = |export: Export| Export { offset, ..export };
        is_it.then(|| export.clone().map(at))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Slot {
    /// As a packet has it: 0 for none, so that its bits are one more than the number
    pub(super) fn encode(slot: Option<Self>) -> [u8; 3] {
        let Some(slot) = slot else {
            return [0; 3];
        };
        let [low, high] = slot.generation.to_le_bytes();
        [slot.number + 1, low, high]
    }

    /// Reads it from a packet
    ///
    /// # Errors
    ///
    /// There is no such slot.
    pub(super) fn decode(bytes: [u8; 3]) -> Result<Option<Self>, String> {
        let generation = u16::from_le_bytes([bytes[1], bytes[2]]);
        match bytes[0].checked_sub(1) {
            None if generation == 0 => Ok(None),
            Some(number) if number < SLOTS_MAX && generation <= GENERATION_MASK => {
                Ok(Some(Self { number, generation }))
            }
            _ => Err(format!("slot {bytes:?}")),
        }
    }
}

/// Allocations that a peer knows: as many as stay open
const SLOTS_MAX: u8 = 62;

/// `1 bit known | 6 bits slot, all of them set for an address | 9 bits generation | 48 bits offset`
const KNOWN: u64 = 1 << 63;
const OFFSET_BITS: u32 = 48;
const OFFSET_MAX: u64 = (1 << OFFSET_BITS) - 1;
const GENERATION_MASK: u16 = (1 << 9) - 1;
const NUMBER_SHIFT: u32 = OFFSET_BITS + 9;
const NUMBER_MASK: u8 = (1 << 6) - 1;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use backhaul_cuda::Uuid;

    use super::*;

    fn export(id: u64, offset: u64) -> Export {
        Export {
            device: Uuid([1; 16]),
            id,
            allocation_bytes: 1 << 30,
            offset,
            handle: Handle::Legacy([0; 64]),
        }
    }

    /// Names an allocation for the first time
    fn named(slots: &mut Slots, id: u64) -> Slot {
        match slots.name(&export(id, 0)) {
            Naming::Named(slot) => slot,
            other => panic!("{id}: {other:?}"),
        }
    }

    /// Offers something by the slot of an allocation
    fn known(slots: &mut Slots, id: u64, offset: u64) -> (Slot, u64) {
        let Naming::Known(ticket) = slots.name(&export(id, offset)) else {
            panic!("{id} is not known");
        };
        match Ticket::decode(ticket) {
            Ticket::Known(slot, at) => (slot, at),
            other => panic!("{id}: {other:?}"),
        }
    }

    #[test]
    fn an_allocation_keeps_its_slot() {
        let mut slots = Slots::default();
        let slot = named(&mut slots, 7);
        for offset in [0, 4096, (1 << 30) - 1] {
            assert_eq!(known(&mut slots, 7, offset), (slot, offset));
        }
        assert_ne!(named(&mut slots, 8), slot);
    }

    #[test]
    fn a_slot_is_given_away_when_all_that_was_offered_by_it_is_over() {
        let mut slots = Slots::default();
        let first = named(&mut slots, 0);
        let (used, _) = known(&mut slots, 0, 1);
        for id in 1..u64::from(SLOTS_MAX) {
            named(&mut slots, id);
        }
        // The first is in use, so the second goes.
        assert_eq!(named(&mut slots, 100).number, 1);
        assert_eq!(known(&mut slots, 0, 2).0, first);
        slots.release(used);
        slots.release(used);
        for id in 2..u64::from(SLOTS_MAX) {
            known(&mut slots, id, 0);
        }
        known(&mut slots, 100, 0);
        let again = named(&mut slots, 101);
        assert_eq!((again.number, again.generation), (0, 1));
        // An earlier offer is not taken for the present content of the slot.
        let mut peer = Known::default();
        peer.learn(first, Ok(export(0, 0)));
        assert!(peer.find(again, 5).is_none());
        peer.learn(again, Ok(export(101, 0)));
        let found = peer.find(again, 5).unwrap().unwrap();
        assert_eq!((found.id, found.offset), (101, 5));
        assert!(peer.find(first, 5).is_none());
        // All are in use.
        known(&mut slots, 101, 0);
        assert_eq!(slots.name(&export(102, 0)), Naming::Unnamed);
    }

    #[test]
    fn tickets_and_packets_say_the_same_slot() {
        for (number, generation) in [(0, 0), (SLOTS_MAX - 1, GENERATION_MASK), (3, 256)] {
            let slot = Slot { number, generation };
            assert_eq!(Slot::decode(Slot::encode(Some(slot))), Ok(Some(slot)));
            let ticket = Ticket::known(slot, OFFSET_MAX);
            assert_eq!(Ticket::decode(ticket), Ticket::Known(slot, OFFSET_MAX));
        }
        assert_eq!(Slot::decode([0; 3]), Ok(None));
        for wrong in [[0, 1, 0], [SLOTS_MAX + 1, 0, 0], [1, 0, 2]] {
            assert!(Slot::decode(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(Ticket::decode(5), Ticket::Counted(5));
        assert_eq!(
            Ticket::decode(Ticket::local(99).unwrap()),
            Ticket::Local(99)
        );
        assert_eq!(Ticket::local(1 << 48), None);
    }
}
