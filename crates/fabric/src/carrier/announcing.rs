//! Choice between announced and eager messages, learned from how often they come either way.
//!
//! A message of up to `eager_bytes_max` bytes goes eagerly, through the lane, or is announced and
//! fetched by one copy. Which of them is better depends on more than the copies. Where one message
//! waits for another, what counts is how long one takes; in a stream it is what the busier of the two
//! sides does for each, and the sender does nothing for one that is fetched. So it is not the copies
//! that are compared but the time from one message in its place to the next, which has all of that in
//! it. The receiver sees that time and [advises](Advice) the sender, who tries the other way now
//! and then ([`Announcing`]), so that there is something to compare.
//!
//! Where messages come rarely, that time says what the program does in between. Therefore it counts
//! only up to a few times what the message itself took, and then that is what decides.

use std::time::Duration;

use super::ways::{
    CLASSES, Samples, TRIAL, TRIALS, TRY_AGAIN_EVERY, UNCOUNTED, bytes_min_of, class_of,
};

/// Receiver's record of messages that may be announced or not
#[derive(Debug, Default)]
pub(crate) struct Advice {
    /// Costs of eager messages and of announced ones, by size
    classes: [[Samples; 2]; CLASSES],
    /// The class of the last message, whether it was announced, and how many such came in a row
    run: Option<(usize, bool, u32)>,
}

/// A message that is in its place
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlace {
    /// Its size
    pub(crate) bytes: u64,
    /// It did not come unasked
    pub(crate) is_announced: bool,
    /// Time since this side was ready for it, and had nothing else to bring in before it
    pub(crate) took: Duration,
    /// Time since the one before it was in its place, if there was one
    pub(crate) since_last: Option<Duration>,
}

impl Advice {
    /// Notes what a message cost, if it is one that its sender may send eagerly
    pub(crate) fn record(&mut self, message: &InPlace, eager_bytes_max: u64) {
        let &InPlace {
            bytes,
            is_announced,
            took,
            since_last,
        } = message;
        if !(CHOICE_BYTES_MIN..=eager_bytes_max).contains(&bytes) {
            self.run = None;
            return;
        }
        let class = class_of(bytes);
        let run = self.run.take();
        let run = run.filter(|(last, announced, _)| (*last, *announced) == (class, is_announced));
        let length = run.map_or(0, |(_, _, length)| length);
        self.run = Some((class, is_announced, length.saturating_add(1)));
        if length < UNCOUNTED {
            return;
        }
        let took = if is_announced {
            took + ANNOUNCING
        } else {
            took
        };
        let rest = TOOK_TIMES_MAX * took;
        let cost = since_last.map_or(rest, |since| since.min(rest));
        self.classes[class][usize::from(is_announced)].record(bytes, cost);
    }

    /// From how many bytes on the sender should announce what it could send eagerly; `None` if that is
    /// not known yet
    pub(crate) fn bytes(&self) -> Option<u64> {
        let mut advice = None;
        for (index, [eager, announced]) in self.classes.iter().enumerate().rev() {
            if eager.count() < TRIALS || announced.count() < TRIALS {
                continue;
            }
            if eager.median() <= announced.median() {
                // Nor smaller ones: to announce a message costs as much for each.
                return advice.or_else(|| Some(2 * bytes_min_of(index)));
            }
            advice = Some(bytes_min_of(index));
        }
        advice
    }
}

/// Decides for the sender whether to announce a message that could go eagerly
#[derive(Debug, Default)]
pub(crate) struct Announcing {
    /// Messages for which there was a choice
    choices: u32,
}

impl Announcing {
    /// Chooses, with what the receiver advises
    pub(crate) fn choose(&mut self, bytes: u64, advice_bytes: Option<u64>) -> bool {
        let chosen = self.peek(bytes, advice_bytes);
        self.count(bytes);
        chosen
    }

    /// Counts a choice that was made before, with [`peek`](Self::peek)
    pub(crate) fn count(&mut self, bytes: u64) {
        if bytes >= CHOICE_BYTES_MIN {
            self.choices = self.choices.wrapping_add(1);
        }
    }

    /// Returns the next choice without making it
    pub(crate) fn peek(&self, bytes: u64, advice_bytes: Option<u64>) -> bool {
        if bytes < CHOICE_BYTES_MIN {
            return false;
        }
        let Some(advice_bytes) = advice_bytes else {
            // Few of each, in turn, until there is advice.
            return (self.choices / TRIAL).is_multiple_of(2);
        };
        (bytes >= advice_bytes) != (self.choices % TRY_AGAIN_EVERY < TRIAL)
    }
}

/// Shorter messages always go eagerly
pub(crate) const CHOICE_BYTES_MIN: u64 = bytes_min_of(0);

/// A pause before a message counts as so many times what it took, at most: one that waits for the
/// answer to another, which takes as long, is seen whole
const TOOK_TIMES_MAX: u32 = 3;

/// Time that a message takes longer, because it is announced, than its fetch shows: its sender
/// waits for the answer
const ANNOUNCING: Duration = Duration::from_nanos(500);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::ways::{Way, Ways};

    const LONGEST: u64 = 64 << 10;

    /// Has `count` messages of a size come in a row, each taking so many nanoseconds, and as many from
    /// one to the next
    fn come(advice: &mut Advice, count: u32, bytes: u64, is_announced: bool, nanos: (u64, u64)) {
        for _ in 0..count {
            let message = InPlace {
                bytes,
                is_announced,
                took: Duration::from_nanos(nanos.0),
                since_last: Some(Duration::from_nanos(nanos.1)),
            };
            advice.record(&message, LONGEST);
        }
    }

    #[test]
    fn advice_follows_what_is_faster_by_size() {
        let mut advice = Advice::default();
        assert_eq!(advice.bytes(), None);
        come(&mut advice, 20, LONGEST, false, (9_000, 20_000));
        assert_eq!(advice.bytes(), None);
        come(&mut advice, TRIAL, LONGEST, true, (9_000, 18_000));
        assert_eq!(advice.bytes(), Some(LONGEST));
        come(&mut advice, TRIAL, LONGEST / 2, false, (5_000, 10_000));
        come(&mut advice, TRIAL, LONGEST / 2, true, (5_000, 11_000));
        assert_eq!(advice.bytes(), Some(LONGEST));
        come(&mut advice, 2 * TRIAL, LONGEST, false, (9_000, 17_000));
        assert_eq!(advice.bytes(), Some(2 * LONGEST));
    }

    #[test]
    fn the_time_of_a_copy_does_not_hide_what_a_stream_takes() {
        let mut advice = Advice::default();
        // A fetch is the faster copy, and more is to be done for it.
        come(&mut advice, TRIAL, LONGEST, false, (6_000, 6_400));
        come(&mut advice, TRIAL, LONGEST, true, (5_000, 8_200));
        assert_eq!(advice.bytes(), Some(2 * LONGEST));
    }

    #[test]
    fn where_messages_come_rarely_it_is_their_own_time_that_counts() {
        let mut advice = Advice::default();
        for pause in [900_000, 700_000, 1_100_000, 600_000] {
            come(&mut advice, TRIAL, LONGEST, false, (8_000, pause));
            come(&mut advice, TRIAL, LONGEST, true, (5_000, 2 * pause));
            assert_eq!(advice.bytes(), Some(LONGEST));
            come(&mut advice, TRIAL, LONGEST, true, (7_900, pause / 2));
            // Faster, but not by what announcing it takes.
            assert_eq!(advice.bytes(), Some(2 * LONGEST));
        }
    }

    #[test]
    fn what_comes_between_messages_of_other_kinds_does_not_count() {
        let mut advice = Advice::default();
        for _ in 0..100 {
            come(&mut advice, UNCOUNTED, LONGEST, false, (1, 1));
            come(&mut advice, 1, LONGEST + 1, true, (1, 1));
            come(&mut advice, UNCOUNTED, LONGEST, true, (1, 1));
        }
        assert_eq!(advice.bytes(), None);
    }

    #[test]
    fn messages_of_any_size_that_may_go_eagerly_settle_on_what_is_faster() {
        for (eager_bytes_max, bytes) in [(64 << 10, 40 << 10), (1 << 20, 300 << 10)] {
            for is_announced_faster in [false, true] {
                let mut ways = Ways::new(eager_bytes_max);
                let mut announcing = Announcing::default();
                let mut announced = Vec::new();
                for _ in 0..400 {
                    let is_announced = announcing.choose(bytes, ways.advice_bytes());
                    announced.push(is_announced);
                    let way = if is_announced { Way::Fetch } else { Way::Lane };
                    let is_fast = is_announced == is_announced_faster;
                    let took = Duration::from_micros(if is_fast { 30 } else { 90 });
                    let message = InPlace {
                        bytes,
                        is_announced,
                        took,
                        since_last: Some(took),
                    };
                    ways.handle_in_place(way, &message);
                }
                let last = &announced[100..];
                let fast = last.iter().filter(|one| **one == is_announced_faster);
                assert!(fast.count() > 280, "{bytes} of {eager_bytes_max} bytes");
            }
        }
    }

    #[test]
    fn a_peer_that_sends_longer_messages_eagerly_is_advised_too() {
        let mut ways = Ways::new(64 << 10);
        for is_announced in [false, true] {
            for _ in 0..TRIAL {
                let took = Duration::from_micros(if is_announced { 30 } else { 90 });
                let message = InPlace {
                    bytes: 300 << 10,
                    is_announced,
                    took,
                    since_last: Some(took),
                };
                let way = if is_announced { Way::Fetch } else { Way::Lane };
                ways.handle_in_place(way, &message);
            }
        }
        assert_eq!(ways.advice_bytes(), Some(256 << 10));
    }

    #[test]
    fn both_ways_are_tried_whatever_the_advice() {
        for advice in [None, Some(16 << 10), Some(1 << 30)] {
            let mut announcing = Announcing::default();
            let announced = (0..2560).filter(|_| announcing.choose(64 << 10, advice));
            assert!((50..=2510).contains(&announced.count()), "{advice:?}");
        }
        assert!(!Announcing::default().choose(CHOICE_BYTES_MIN - 1, Some(0)));
    }
}
