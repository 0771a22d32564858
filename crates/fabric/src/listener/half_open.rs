//! Connections that have come in and whose handshake is not over, and which of them gives way when
//! there are too many.
//!
//! An untrusted peer may open connections and say nothing. Each would hold a place until the
//! handshake times out, and others would wait in the kernel's queue. So if there are too many, the
//! oldest silent one gives way, of the address that has most of them: an address with few
//! connections does not pay for one with many. No I/O, no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The handshakes of one listener, oldest first
#[derive(Debug)]
pub(super) struct HalfOpen<T> {
    next: u64,
    places: BTreeMap<u64, Place<T>>,
    /// Silent connections, by address
    silent: HashMap<IpAddr, BTreeSet<u64>>,
}

#[derive(Debug)]
struct Place<T> {
    address: IpAddr,
    since: Instant,
    handshake: T,
}

/// Connection that makes room
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Room<T> {
    /// This one, which has left its place
    Of(T),
    /// No connection before that instant
    NotBefore(Instant),
}

impl<T> Default for HalfOpen<T> {
    fn default() -> Self {
        Self {
            next: 0,
            places: BTreeMap::new(),
            silent: HashMap::new(),
        }
    }
}

impl<T: Clone> HalfOpen<T> {
    /// Gives a handshake a place, returning its number
    pub(super) fn enter(&mut self, address: IpAddr, now: Instant, handshake: T) -> u64 {
        let number = self.next;
        self.next += 1;
        let place = Place {
            address,
            since: now,
            handshake,
        };
        self.places.insert(number, place);
        self.silent.entry(address).or_default().insert(number);
        number
    }

    /// Frees a place, if it is still there
    pub(super) fn leave(&mut self, number: u64) {
        if let Some(place) = self.places.remove(&number) {
            self.no_longer_silent(place.address, number);
        }
    }

    /// Handshakes that have a place
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Finds who makes room for another connection; `has_spoken` is asked of those that were silent
    pub(super) fn make_room(
        &mut self,
        now: Instant,
        mut has_spoken: impl FnMut(&T) -> bool,
    ) -> Room<T> {
        let age = |since: Instant| now.saturating_duration_since(since);
        let oldest = self.places.first_key_value();
        if let Some((&number, place)) = oldest
            && age(place.since) >= PATIENCE
        {
            return Room::Of(self.take(number, place.handshake.clone()));
        }
        let mut at = oldest.map_or(now, |(_, place)| place.since) + PATIENCE;
        while let Some((&address, numbers)) = self.silent.iter().max_by_key(|(_, all)| all.len())
            && let Some(&number) = numbers.first()
        {
            let patience = match numbers.len() {
                CROWD.. => CROWD_PATIENCE,
                _ => SILENT_PATIENCE,
            };
            let place = &self.places[&number];
            if age(place.since) < patience {
                at = at.min(place.since + patience);
                break;
            }
            if has_spoken(&place.handshake) {
                self.no_longer_silent(address, number);
                continue;
            }
            return Room::Of(self.take(number, place.handshake.clone()));
        }
        Room::NotBefore(at)
    }

    fn take(&mut self, number: u64, handshake: T) -> T {
        self.leave(number);
        handshake
    }

    fn no_longer_silent(&mut self, address: IpAddr, number: u64) {
        if let Some(numbers) = self.silent.get_mut(&address) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.silent.remove(&address);
            }
        }
    }
}

/// How long a handshake has its place although others wait for one
const PATIENCE: Duration = Duration::from_secs(5);

/// The same where nothing has been said
const SILENT_PATIENCE: Duration = Duration::from_secs(1);

/// Silent connections of one address that are no accident
const CROWD: usize = 128;

/// How long one of a crowd may be silent: a Hello follows its connection at once
const CROWD_PATIENCE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_oldest_silent_one_of_the_largest_crowd_gives_way() {
        let start = Instant::now();
        let mut half_open = HalfOpen::default();
        half_open.enter(address(1), start, 'a');
        for _ in 0..CROWD {
            half_open.enter(address(2), start, 'b');
        }
        half_open.enter(address(2), start + MOMENT, 'c');
        let now = start + CROWD_PATIENCE;
        assert_eq!(half_open.make_room(now, |_| false), Room::Of('b'));
        assert_eq!(half_open.len(), CROWD + 1);
    }

    #[test]
    fn who_has_spoken_stays() {
        let start = Instant::now();
        let mut half_open = HalfOpen::default();
        for number in 0..CROWD + 5 {
            half_open.enter(address(1), start, number);
        }
        let now = start + CROWD_PATIENCE;
        let room = half_open.make_room(now, |number| *number < 3);
        assert_eq!(room, Room::Of(3));
        // Asked once.
        let room = half_open.make_room(now, |number| {
            assert!(*number > 3);
            false
        });
        assert_eq!(room, Room::Of(4));
    }

    #[test]
    fn a_crowd_that_just_came_is_waited_for() {
        let start = Instant::now();
        let mut half_open = HalfOpen::default();
        for _ in 0..CROWD {
            half_open.enter(address(1), start, ());
        }
        let room = half_open.make_room(start + MOMENT, |()| false);
        assert_eq!(room, Room::NotBefore(start + CROWD_PATIENCE));
    }

    #[test]
    fn a_few_have_longer() {
        let start = Instant::now();
        let mut half_open = HalfOpen::default();
        half_open.enter(address(1), start, ());
        let room = half_open.make_room(start + CROWD_PATIENCE, |()| false);
        assert_eq!(room, Room::NotBefore(start + SILENT_PATIENCE));
        let room = half_open.make_room(start + SILENT_PATIENCE, |()| false);
        assert_eq!(room, Room::Of(()));
        assert_eq!(half_open.len(), 0);
    }

    #[test]
    fn who_has_spoken_and_stopped_has_longest() {
        let start = Instant::now();
        let mut half_open = HalfOpen::default();
        half_open.enter(address(1), start, ());
        let room = half_open.make_room(start + SILENT_PATIENCE, |()| true);
        assert_eq!(room, Room::NotBefore(start + PATIENCE));
        let room = half_open.make_room(start + PATIENCE, |()| true);
        assert_eq!(room, Room::Of(()));
    }

    #[test]
    fn who_leaves_is_not_asked_for_room() {
        let start = Instant::now();
        let mut half_open = HalfOpen::default();
        let numbers: Vec<u64> = (0..CROWD)
            .map(|_| half_open.enter(address(1), start, ()))
            .collect();
        for number in numbers {
            half_open.leave(number);
            half_open.leave(number);
        }
        let now = start + PATIENCE;
        assert_eq!(
            half_open.make_room(now, |()| false),
            Room::NotBefore(now + PATIENCE)
        );
        assert!(half_open.silent.is_empty());
    }

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    const MOMENT: Duration = Duration::from_millis(1);
}
