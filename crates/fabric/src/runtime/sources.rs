//! Sources that the engine watches, each under an id that is never given out twice.

use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{EventData, EventFlags};

use super::timers::Timers;

/// Something the engine watches
pub(crate) trait Source: Send + Sync {
    /// A descriptor registered under `port` is ready
    fn on_ready(self: Arc<Self>, port: u8, flags: EventFlags);

    /// Looks at a busy-polled source, returning whether it stays busy-polled
    fn on_tick(self: Arc<Self>) -> bool {
        false
    }

    /// Looks whether something was overlooked, returning whether to look again
    fn on_inspect(self: Arc<Self>) -> bool {
        false
    }

    /// The deadline of the source has passed; returns the next one, if there is one
    fn on_deadline(self: Arc<Self>, _now: Instant) -> Option<Instant> {
        None
    }

    /// The source ends, because the engine ends or because the source failed
    fn on_stop(self: Arc<Self>);
}

/// Names a registered source
///
/// The index of its slot, and how often the slot had been used before: an id that is kept after
/// its source has gone names nothing.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct SourceId {
    index: u32,
    /// Of which [`GENERATION_BITS`] are used
    generation: u32,
}

/// The registered sources and their deadlines
///
/// Nothing of a source is called or dropped in here: a table is used under a lock, and a source
/// may want the table as it ends.
#[derive(Default)]
pub(super) struct Sources {
    slots: Vec<Slot>,
    free: Vec<u32>,
    timers: Timers<SourceId>,
}

struct Slot {
    generation: u32,
    source: Option<Arc<dyn Source>>,
}

impl Sources {
    /// Takes in a source
    pub(super) fn insert(&mut self, source: Arc<dyn Source>) -> SourceId {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.source = Some(source);
            return SourceId {
                index,
                generation: slot.generation,
            };
        }
        let index = u32::try_from(self.slots.len()).expect("memory ends before ids do");
        self.slots.push(Slot {
            generation: 0,
            source: Some(source),
        });
        SourceId {
            index,
            generation: 0,
        }
    }

    /// Takes a source out, with its deadline, to be dropped outside the lock
    #[must_use = "drop it outside the lock"]
    pub(super) fn remove(&mut self, id: SourceId) -> Option<Arc<dyn Source>> {
        let slot = self.slot_mut(id)?;
        let source = slot.source.take();
        slot.generation = (slot.generation + 1) & GENERATION_MAX;
        self.free.push(id.index);
        self.timers.cancel(id);
        source
    }

    /// Puts another source in the place of one, which is returned to be dropped outside the lock
    ///
    /// The deadline goes with the former. An id that names nothing leaves everything as it is,
    /// and returns `source`.
    #[must_use = "drop it outside the lock"]
    pub(super) fn replace(
        &mut self,
        id: SourceId,
        source: Arc<dyn Source>,
    ) -> Option<Arc<dyn Source>> {
        let Some(slot) = self.slot_mut(id) else {
            return Some(source);
        };
        let former = slot.source.replace(source);
        self.timers.cancel(id);
        former
    }

    /// The source of an id
    pub(super) fn source(&self, id: SourceId) -> Option<Arc<dyn Source>> {
        let slot = self.slots.get(id.index as usize)?;
        slot.source
            .as_ref()
            .filter(|_| slot.generation == id.generation)
            .cloned()
    }

    /// Takes out all sources
    #[must_use = "drop them outside the lock"]
    pub(super) fn drain(&mut self) -> Vec<Arc<dyn Source>> {
        let ids = self.ids();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Sets a deadline unless the source has an earlier one; `true` if it is the earliest of all
    pub(super) fn schedule(&mut self, id: SourceId, at: Instant) -> bool {
        if self.slot_mut(id).is_none() {
            return false;
        }
        let is_earliest = self.timers.earliest().is_none_or(|earliest| at < earliest);
        self.timers.schedule(id, at);
        is_earliest
    }

    /// Takes the deadlines that have passed, returning whose they were
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<SourceId> {
        self.timers.take_due(now)
    }

    /// The earliest deadline
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.timers.earliest()
    }

    fn ids(&self) -> Vec<SourceId> {
        (0..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.source.is_some())
            .map(|(index, slot)| SourceId {
                index,
                generation: slot.generation,
            })
            .collect()
    }

    fn slot_mut(&mut self, id: SourceId) -> Option<&mut Slot> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation && slot.source.is_some())
    }
}

impl SourceId {
    /// The id and a port, as the kernel gives them back with an event
    pub(super) fn event_data(self, port: u8) -> EventData {
        EventData::new_u64(
            u64::from(self.index) << (GENERATION_BITS + PORT_BITS)
                | u64::from(self.generation) << PORT_BITS
                | u64::from(port),
        )
    }

    /// The id and port of an event
    pub(super) fn from_event_data(data: u64) -> (Self, u8) {
        let id = Self {
            index: (data >> (GENERATION_BITS + PORT_BITS)) as u32,
            generation: (data >> PORT_BITS) as u32 & GENERATION_MAX,
        };
        (id, data as u8)
    }
}

/// Bits of a port in the data of an event; the rest is the index
const PORT_BITS: u32 = 8;

/// Bits of a generation in the data of an event
const GENERATION_BITS: u32 = 24;

/// The last generation of a slot: a stale id would have to be kept for as many connections
const GENERATION_MAX: u32 = (1 << GENERATION_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Source for Nothing {
        fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {}
        fn on_stop(self: Arc<Self>) {}
    }

    #[test]
    fn an_id_is_not_given_out_again() {
        let mut sources = Sources::default();
        let first = sources.insert(Arc::new(Nothing));
        assert!(sources.remove(first).is_some());
        let second = sources.insert(Arc::new(Nothing));
        assert_ne!(first, second);
        assert!(sources.source(first).is_none());
        assert!(sources.remove(first).is_none());
        assert!(!sources.schedule(first, Instant::now()));
        assert!(sources.source(second).is_some());
        assert_eq!(sources.earliest(), None);
    }

    #[test]
    fn the_deadline_of_a_source_goes_with_it() {
        let mut sources = Sources::default();
        let now = Instant::now();
        let id = sources.insert(Arc::new(Nothing));
        assert!(sources.schedule(id, now));
        assert!(sources.replace(id, Arc::new(Nothing)).is_some());
        assert_eq!(sources.take_due(now), []);
        assert!(sources.schedule(id, now));
        assert_eq!(sources.drain().len(), 1);
        assert_eq!(sources.take_due(now), []);
    }

    #[test]
    fn an_event_names_its_source_and_port() {
        for (index, generation, port) in [(0, 0, 0), (7, GENERATION_MAX, 255), (u32::MAX - 1, 3, 1)]
        {
            let id = SourceId { index, generation };
            let data = id.event_data(port).u64();
            assert_eq!(SourceId::from_event_data(data), (id, port));
        }
    }
}
