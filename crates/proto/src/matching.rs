//! Matching of messages and receives, as MPI does it.
//!
//! Two queues, in order of arrival and of posting: receives that wait for a message, messages that
//! wait for a receive. A message takes the first receive that wants it, a receive the first
//! message it wants; hence messages of one tag are received in the order they were sent. Both
//! queues are searched from the head, so what is in order costs nothing, and a search is over
//! adjacent memory. A message whose receive is withdrawn comes back to its place in the order.

use std::collections::VecDeque;

use crate::ids::{Tag, TagMask};
use crate::queue::{Queue, Ticket};

/// The two queues of one matching space
///
/// `R` stands for a posted receive, `M` for an unexpected message. No posted receive wants any of
/// the unexpected messages: they would have met.
#[derive(Debug)]
pub(crate) struct Matcher<R, M> {
    /// Receives that wait, oldest first
    posted: Queue<Posted<R>>,
    /// Messages that wait, oldest first
    unexpected: VecDeque<Unexpected<M>>,
}

#[derive(Debug)]
struct Posted<R> {
    tag: Tag,
    mask: TagMask,
    recv: R,
}

#[derive(Debug)]
struct Unexpected<M> {
    tag: Tag,
    /// Place in the order of sending; ascending in the queue
    order: u64,
    message: M,
}

impl<R, M> Matcher<R, M> {
    /// Takes the receive for a message, or keeps the message for later
    ///
    /// `order` is its place in the order of sending: that of a new message is the largest, that of
    /// one whose receive was withdrawn is where it was.
    pub(crate) fn arrive(&mut self, tag: Tag, order: u64, message: M) -> Option<R> {
        let found = self.find_posted(tag).map(|(index, _)| index);
        if found.is_none() {
            // From the back: most are new.
            let later = self.unexpected.iter().rev();
            let later = later.take_while(|other| other.order > order).count();
            let at = self.unexpected.len() - later;
            let unexpected = Unexpected {
                tag,
                order,
                message,
            };
            self.unexpected.insert(at, unexpected);
        }
        self.take_posted(found?)
    }

    /// Finds the receive that a message would take on arrival
    pub(crate) fn find_posted(&self, tag: Tag) -> Option<(usize, &R)> {
        let wants = |posted: &Posted<R>| tag.matches(posted.tag, posted.mask);
        let (index, posted) = self.posted.find(wants)?;
        Some((index, &posted.recv))
    }

    /// Takes the receive that [`find_posted`](Self::find_posted) found
    pub(crate) fn take_posted(&mut self, index: usize) -> Option<R> {
        self.posted.take_at(index).map(|posted| posted.recv)
    }

    /// Takes the message for a receive
    ///
    /// If there is none, the receive may be kept for later with [`push_posted`](Self::push_posted).
    pub(crate) fn take_unexpected(&mut self, tag: Tag, mask: TagMask) -> Option<M> {
        let wanted = |unexpected: &Unexpected<M>| unexpected.tag.matches(tag, mask);
        let index = self.unexpected.iter().position(wanted)?;
        Some(self.unexpected.remove(index)?.message)
    }

    /// Finds the message that a receive would take, and its tag
    pub(crate) fn find_unexpected(&self, tag: Tag, mask: TagMask) -> Option<(Tag, &M)> {
        let mut unexpected = self.unexpected.iter();
        let found = unexpected.find(|unexpected| unexpected.tag.matches(tag, mask))?;
        Some((found.tag, &found.message))
    }

    /// Keeps a receive that no unexpected message matches, returning what takes it back
    pub(crate) fn push_posted(&mut self, tag: Tag, mask: TagMask, recv: R) -> Ticket {
        debug_assert!(
            !self.unexpected.iter().any(|u| u.tag.matches(tag, mask)),
            "take_unexpected comes first"
        );
        self.posted.push_back(Posted { tag, mask, recv })
    }

    /// Takes back a receive, if it still waits
    pub(crate) fn cancel(&mut self, ticket: Ticket) -> Option<R> {
        self.posted.take(ticket).map(|posted| posted.recv)
    }

    /// Takes back all receives that wait, oldest first
    pub(crate) fn drain_posted(&mut self) -> impl Iterator<Item = R> + '_ {
        self.posted.drain().map(|posted| posted.recv)
    }

    /// How many receives wait
    pub(crate) fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// How many messages wait
    pub(crate) fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }
}

impl<R, M> Default for Matcher<R, M> {
    fn default() -> Self {
        Self {
            posted: Queue::default(),
            unexpected: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_of_one_tag_are_taken_in_order() {
        let mut matcher = Matcher::<(), u32>::default();
        for message in 0..3 {
            assert_eq!(matcher.arrive(Tag(7), u64::from(message), message), None);
        }
        assert_eq!(matcher.take_unexpected(Tag(8), TagMask::FULL), None);
        for message in 0..3 {
            let taken = matcher.take_unexpected(Tag(7), TagMask::FULL);
            assert_eq!(taken, Some(message));
        }
    }

    #[test]
    fn the_oldest_matching_receive_wins_even_if_a_later_one_is_exact() {
        let mut matcher = Matcher::<&str, ()>::default();
        matcher.push_posted(Tag(9), TagMask::FULL, "other");
        matcher.push_posted(Tag(0), TagMask::ANY, "any");
        matcher.push_posted(Tag(7), TagMask::FULL, "exact");
        assert_eq!(matcher.arrive(Tag(7), 0, ()), Some("any"));
        assert_eq!(matcher.arrive(Tag(7), 1, ()), Some("exact"));
        assert_eq!(matcher.posted_len(), 1);
    }

    #[test]
    fn a_message_that_is_looked_at_stays() {
        let mut matcher = Matcher::<(), u32>::default();
        matcher.arrive(Tag(7), 0, 1);
        matcher.arrive(Tag(8), 1, 2);
        assert_eq!(matcher.find_unexpected(Tag(9), TagMask::FULL), None);
        assert_eq!(
            matcher.find_unexpected(Tag(8), TagMask::FULL),
            Some((Tag(8), &2))
        );
        assert_eq!(
            matcher.find_unexpected(Tag(0), TagMask(0)),
            Some((Tag(7), &1))
        );
        assert_eq!(matcher.take_unexpected(Tag(7), TagMask::FULL), Some(1));
    }

    #[test]
    fn a_cancelled_receive_takes_no_message() {
        let mut matcher = Matcher::<u32, u32>::default();
        let first = matcher.push_posted(Tag(0), TagMask::ANY, 1);
        matcher.push_posted(Tag(0), TagMask::ANY, 2);
        assert_eq!(matcher.cancel(first), Some(1));
        assert_eq!(matcher.cancel(first), None);
        assert_eq!(matcher.arrive(Tag(7), 0, 0), Some(2));
        assert_eq!(matcher.arrive(Tag(7), 1, 0), None);
    }

    #[test]
    fn a_message_that_comes_back_is_taken_in_its_order() {
        let mut matcher = Matcher::<u32, u64>::default();
        for order in [0, 2, 3] {
            assert_eq!(matcher.arrive(Tag(7), order, order), None);
        }
        assert_eq!(matcher.arrive(Tag(7), 1, 1), None);
        for order in 0..4 {
            assert_eq!(matcher.take_unexpected(Tag(7), TagMask::FULL), Some(order));
        }
        matcher.push_posted(Tag(7), TagMask::FULL, 5);
        assert_eq!(matcher.arrive(Tag(7), 1, 1), Some(5));
    }

    /// Reference model of a matcher, as plain as possible: it looks for pairs in one list of
    /// everything that ever happened
    #[derive(Default)]
    struct Model {
        events: Vec<Happened>,
    }

    enum Happened {
        Posted {
            tag: Tag,
            mask: TagMask,
            recv: usize,
        },
        Arrived {
            tag: Tag,
            message: usize,
        },
        Over,
    }

    impl Model {
        fn arrive(&mut self, arriving: Tag, message: usize) -> Option<usize> {
            for event in &mut self.events {
                if let Happened::Posted { tag, mask, recv } = *event
                    && arriving.0 & mask.0 == tag.0 & mask.0
                {
                    *event = Happened::Over;
                    return Some(recv);
                }
            }
            let tag = arriving;
            self.events.push(Happened::Arrived { tag, message });
            None
        }

        fn post(&mut self, tag: Tag, mask: TagMask, recv: usize) -> Option<usize> {
            for event in &mut self.events {
                if let Happened::Arrived {
                    tag: arrived,
                    message,
                } = *event
                    && arrived.0 & mask.0 == tag.0 & mask.0
                {
                    *event = Happened::Over;
                    return Some(message);
                }
            }
            self.events.push(Happened::Posted { tag, mask, recv });
            None
        }

        fn cancel(&mut self, id: usize) -> bool {
            for event in &mut self.events {
                if matches!(event, Happened::Posted { recv, .. } if *recv == id) {
                    *event = Happened::Over;
                    return true;
                }
            }
            false
        }

        fn posted(&self) -> usize {
            let is_posted = |event: &&Happened| matches!(event, Happened::Posted { .. });
            self.events.iter().filter(is_posted).count()
        }

        fn unexpected(&self) -> usize {
            let is_arrived = |event: &&Happened| matches!(event, Happened::Arrived { .. });
            self.events.iter().filter(is_arrived).count()
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive(Tag),
        Post(Tag, TagMask),
        Cancel(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let tag = || (0_u64..5).prop_map(Tag);
        let mask = prop_oneof![
            3 => Just(TagMask::FULL),
            1 => Just(TagMask::ANY),
            1 => (0_u64..8).prop_map(TagMask),
        ];
        prop_oneof![
            4 => tag().prop_map(Step::Arrive),
            4 => (tag(), mask).prop_map(|(tag, mask)| Step::Post(tag, mask)),
            1 => (0_usize..200).prop_map(Step::Cancel),
        ]
    }

    proptest! {
        #[test]
        fn it_does_what_the_naive_model_does(
            steps in proptest::collection::vec(any_step(), 0..200),
        ) {
            let mut matcher = Matcher::<usize, usize>::default();
            let mut model = Model::default();
            let mut tickets = std::collections::HashMap::new();
            for (id, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Arrive(tag) => {
                        let met = matcher.arrive(tag, id as u64, id);
                        prop_assert_eq!(met, model.arrive(tag, id));
                    }
                    Step::Post(tag, mask) => {
                        let taken = matcher.take_unexpected(tag, mask);
                        if taken.is_none() {
                            tickets.insert(id, matcher.push_posted(tag, mask, id));
                        }
                        prop_assert_eq!(taken, model.post(tag, mask, id));
                    }
                    Step::Cancel(recv) => {
                        let ticket = tickets.get(&recv);
                        let cancelled = ticket.and_then(|ticket| matcher.cancel(*ticket));
                        prop_assert_eq!(cancelled, model.cancel(recv).then_some(recv));
                    }
                }
                prop_assert_eq!(matcher.posted_len(), model.posted());
                prop_assert_eq!(matcher.unexpected_len(), model.unexpected());
            }
        }
    }
}
