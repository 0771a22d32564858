//! A queue of which any entry can be taken out without a search.
//!
//! An entry that leaves from the middle leaves a gap, so that the others stay where they are. Both
//! ends are kept free of gaps, and the gaps are closed when they outnumber the entries: what that
//! costs has been paid for by those that left.

use std::collections::VecDeque;

/// Entries in the order in which they came
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// With ascending tickets; neither the first nor the last is a gap
    places: VecDeque<Place<T>>,
    next_ticket: u64,
    /// Places that are no gaps
    len: usize,
}

/// Names an entry for as long as its queue lives
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Place<T> {
    ticket: Ticket,
    /// `None` is a gap
    entry: Option<T>,
}

impl<T> Queue<T> {
    /// Adds an entry behind all others
    pub(crate) fn push_back(&mut self, entry: T) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.len += 1;
        self.places.push_back(Place {
            ticket,
            entry: Some(entry),
        });
        ticket
    }

    /// The oldest entry
    pub(crate) fn front(&self) -> Option<&T> {
        self.places.front()?.entry.as_ref()
    }

    /// Takes the oldest entry
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        self.take_at(0)
    }

    /// Takes the entry with a ticket, unless it has left
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<T> {
        let at = self
            .places
            .binary_search_by_key(&ticket, |place| place.ticket);
        self.take_at(at.ok()?)
    }

    /// Finds the oldest entry that is wanted, with its place, which is good until the queue changes
    pub(crate) fn find(&self, is_wanted: impl Fn(&T) -> bool) -> Option<(usize, &T)> {
        let entries = self.places.iter().enumerate();
        let mut entries = entries.filter_map(|(at, place)| Some((at, place.entry.as_ref()?)));
        entries.find(|(_, entry)| is_wanted(entry))
    }

    /// Takes the entry at a place that [`find`](Self::find) gave
    pub(crate) fn take_at(&mut self, at: usize) -> Option<T> {
        let entry = self.places.get_mut(at)?.entry.take()?;
        self.len -= 1;
        let is_gap = |place: Option<&Place<T>>| place.is_some_and(|place| place.entry.is_none());
        while is_gap(self.places.front()) {
            self.places.pop_front();
        }
        while is_gap(self.places.back()) {
            self.places.pop_back();
        }
        if self.places.len() > GAPS_FREE + 2 * self.len {
            self.places.retain(|place| place.entry.is_some());
        }
        Some(entry)
    }

    /// Takes all entries, oldest first
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.len = 0;
        self.places.drain(..).filter_map(|place| place.entry)
    }

    /// How many entries there are
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no entries
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            places: VecDeque::new(),
            next_ticket: 0,
            len: 0,
        }
    }
}

/// The latest note on each of several operations, by their numbers, which are small and used again
#[derive(Debug)]
pub(crate) struct Notes<T>(Vec<Option<T>>);

impl<T: Copy> Notes<T> {
    pub(crate) fn put(&mut self, number: usize, note: T) {
        if number >= self.0.len() {
            self.0.resize(number + 1, None);
        }
        self.0[number] = Some(note);
    }

    pub(crate) fn get(&self, number: usize) -> Option<T> {
        self.0.get(number).copied().flatten()
    }
}

impl<T> Default for Notes<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Gaps that a short queue may have
const GAPS_FREE: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One call of a queue
    #[derive(Clone, Debug)]
    enum Act {
        Push,
        Pop,
        /// Takes the entry that was pushed as so many-th, by its ticket
        Take(usize),
        /// Takes the first entry that is divisible by it
        Find(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            3 => Just(Act::Push),
            1 => Just(Act::Pop),
            2 => (0..200_usize).prop_map(Act::Take),
            1 => (1..5_usize).prop_map(Act::Find),
        ]
    }

    proptest! {
        #[test]
        fn entries_leave_as_from_a_plain_list(acts in proptest::collection::vec(act(), 0..300)) {
            let mut queue = Queue::default();
            let mut tickets = Vec::new();
            let mut model: Vec<usize> = Vec::new();
            for act in acts {
                match act {
                    Act::Push => {
                        model.push(tickets.len());
                        tickets.push(queue.push_back(tickets.len()));
                    }
                    Act::Pop => {
                        let oldest = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(queue.pop_front(), oldest);
                    }
                    Act::Take(nth) => {
                        let Some(ticket) = tickets.get(nth) else { continue };
                        let at = model.iter().position(|entry| *entry == nth);
                        prop_assert_eq!(queue.take(*ticket), at.map(|at| model.remove(at)));
                    }
                    Act::Find(divisor) => {
                        let wanted = |entry: &usize| entry.is_multiple_of(divisor);
                        let found = queue.find(wanted).map(|(at, entry)| (at, *entry));
                        let at = model.iter().position(wanted);
                        prop_assert_eq!(found.map(|found| found.1), at.map(|at| model[at]));
                        if let Some((place, entry)) = found {
                            prop_assert_eq!(queue.take_at(place), Some(entry));
                            model.retain(|other| *other != entry);
                        }
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
                prop_assert_eq!(queue.front(), model.first());
                prop_assert!(queue.places.len() <= GAPS_FREE + 2 * model.len());
            }
            prop_assert_eq!(queue.drain().collect::<Vec<_>>(), model);
        }
    }
}
