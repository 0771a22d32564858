//! Messages that have come for one connection, and the doorbell that wakes it.
//!
//! Filled by callbacks of UCX, on any thread; emptied by the holder of the connection.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::IoSliceMut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use backhaul_proto::HEADER_BYTES;
use backhaul_shm::doorbell::Doorbell;
use backhaul_ucx::Offer;

use super::WINDOW_BYTES;
use crate::runtime::lock;

/// Messages that have come for one connection
#[derive(Debug)]
pub(crate) struct Inbox {
    came: Mutex<Came>,
    /// Rung when something comes and the connection sleeps
    doorbell: Doorbell,
    /// The connection sleeps, or is about to
    is_armed: AtomicBool,
    /// Bytes that can be read, as far as is known without the lock
    readable_bytes: AtomicU64,
    /// Something else has come since that was last looked for
    has_events: AtomicBool,
    /// Sent bytes that the peer has read
    taken_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Came {
    bytes: VecDeque<u8>,
    /// Pieces of the lane that have come, all in order
    pieces: u64,
    /// Pieces that came before their turn: with several devices the order is not kept
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: u64,
    offers: HashMap<u64, Offer>,
    /// Why segments do not come that were announced
    failed: HashMap<u64, String>,
    /// Tickets below this have come
    tickets: u64,
    /// Tickets that came before their turn
    tickets_early: BTreeSet<u64>,
    /// Tickets that were over before they came
    tickets_over: BTreeSet<u64>,
    /// Why nothing more comes
    failure: Option<String>,
}

impl Inbox {
    pub(super) fn new(doorbell: Doorbell) -> Self {
        Self {
            came: Mutex::default(),
            doorbell,
            // No thread has looked yet.
            is_armed: AtomicBool::new(true),
            readable_bytes: AtomicU64::new(0),
            has_events: AtomicBool::new(false),
            taken_bytes: AtomicU64::new(0),
        }
    }

    /// Takes a piece of the lane in
    pub(super) fn handle_bytes(&self, number: u64, bytes: &[u8]) {
        let mut came = lock(&self.came);
        if let Err(why) = came.take_in(number, bytes) {
            drop(came);
            return self.fail(why);
        }
        let readable_bytes = came.bytes.len() as u64;
        // Pairs with the look of `has_news`, after arming.
        self.readable_bytes.store(readable_bytes, Ordering::SeqCst);
        drop(came);
        if readable_bytes > 0 {
            self.ring();
        }
    }

    /// Notes how many of the sent bytes the peer has read
    pub(super) fn handle_taken(&self, taken_bytes: u64) {
        // Several messages may be handled out of their order, hence the larger.
        if self.taken_bytes.fetch_max(taken_bytes, Ordering::SeqCst) < taken_bytes {
            self.ring();
        }
    }

    /// Takes an offer in
    pub(super) fn handle_offer(&self, ticket: u64, offer: Offer) {
        let mut came = lock(&self.came);
        let is_over = came.tickets_over.remove(&ticket);
        let is_new = came.note_ticket(ticket);
        let is_full = came.offers.len() + came.tickets_early.len() >= OFFERS_MAX;
        if is_over || !is_new || is_full {
            drop(came);
            if is_full {
                self.fail(format!(
                    "the peer offers more than {OFFERS_MAX} segments at once"
                ));
            }
            // Dropped: the peer has its memory back.
            return;
        }
        came.offers.insert(ticket, offer);
        drop(came);
        self.notify();
    }

    /// Notes that a segment does not come
    pub(super) fn handle_offer_failed(&self, ticket: u64, why: &[u8]) {
        let mut came = lock(&self.came);
        let is_over = came.tickets_over.remove(&ticket);
        let is_new = came.note_ticket(ticket);
        let is_full = came.failed.len() + came.tickets_early.len() >= OFFERS_MAX;
        if is_full {
            drop(came);
            return self.fail(format!(
                "the peer withholds more than {OFFERS_MAX} segments at once"
            ));
        }
        if !is_over && is_new {
            let why = &why[..why.len().min(FAILURE_BYTES_MAX)];
            came.failed
                .insert(ticket, String::from_utf8_lossy(why).into_owned());
            drop(came);
            self.notify();
        }
    }

    /// Refuses an offer, whenever it comes
    pub(super) fn handle_offer_over(&self, ticket: u64) {
        let mut came = lock(&self.came);
        let offer = came.offers.remove(&ticket);
        came.failed.remove(&ticket);
        let has_come = ticket < came.tickets || came.tickets_early.contains(&ticket);
        if !has_come && came.tickets_over.len() < OFFERS_MAX {
            came.tickets_over.insert(ticket);
        }
        drop(came);
        drop(offer);
    }

    /// Nothing more comes
    pub(super) fn fail(&self, why: String) {
        lock(&self.came).failure.get_or_insert(why);
        self.notify();
    }

    /// Something has come that the connection is to look for
    pub(crate) fn notify(&self) {
        // Pairs with the look of `has_news`, after arming.
        self.has_events.store(true, Ordering::SeqCst);
        self.ring();
    }

    fn ring(&self) {
        if self.is_armed.load(Ordering::SeqCst) && self.is_armed.swap(false, Ordering::SeqCst) {
            self.doorbell.notify();
        }
    }

    /// Has the doorbell rung for what comes; `false` if something is there already
    pub(crate) fn arm(&self) -> bool {
        // Before the look: whatever comes after it finds the flag.
        self.is_armed.store(true, Ordering::SeqCst);
        !self.has_news()
    }

    pub(crate) fn disarm(&self) {
        self.is_armed.store(false, Ordering::SeqCst);
    }

    /// Returns whether there is something to look for
    pub(crate) fn has_news(&self) -> bool {
        self.readable_bytes.load(Ordering::SeqCst) > 0 || self.has_events.load(Ordering::SeqCst)
    }

    /// Forgets that something has come, before it is looked for
    pub(crate) fn begin_look(&self) {
        self.has_events.store(false, Ordering::SeqCst);
    }

    /// Fills buffers with bytes of the lane, returning how many
    pub(crate) fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> usize {
        if self.readable_bytes.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let mut came = lock(&self.came);
        let mut total = 0;
        for buffer in buffers {
            let wanted = buffer.len().min(came.bytes.len());
            let (front, back) = came.bytes.as_slices();
            let first = front.len().min(wanted);
            buffer[..first].copy_from_slice(&front[..first]);
            buffer[first..wanted].copy_from_slice(&back[..wanted - first]);
            came.bytes.drain(..wanted);
            total += wanted;
        }
        let readable_bytes = came.bytes.len() as u64;
        self.readable_bytes.store(readable_bytes, Ordering::SeqCst);
        total
    }

    /// Returns the sent bytes that the peer has read
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::SeqCst)
    }

    /// Pieces of the lane that have come, all in order
    pub(crate) fn pieces(&self) -> u64 {
        lock(&self.came).pieces
    }

    /// Takes an offer out, if it has come
    pub(crate) fn take_offer(&self, ticket: u64) -> Option<Offer> {
        lock(&self.came).offers.remove(&ticket)
    }

    /// Why a segment does not come, once
    pub(crate) fn take_failed(&self, ticket: u64) -> Option<String> {
        lock(&self.came).failed.remove(&ticket)
    }

    /// Why nothing more comes, if so
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.came).failure.clone()
    }

    /// How many bytes, and pieces before their turn, and tickets wait
    pub(super) fn held(&self) -> (u64, usize, usize) {
        let came = lock(&self.came);
        let bytes = came.bytes.len() as u64 + came.early_bytes;
        let tickets = came.tickets_early.len() + came.tickets_over.len() + came.failed.len();
        (bytes, came.early.len(), tickets)
    }

    /// Releases all that has come, because the connection has ended
    pub(crate) fn end(&self) {
        self.disarm();
        let mut came = lock(&self.came);
        let offers = std::mem::take(&mut came.offers);
        drop(came);
        // Refused, which calls UCX.
        drop(offers);
    }
}

impl Came {
    /// Takes a piece in, or says what is wrong with it
    fn take_in(&mut self, number: u64, bytes: &[u8]) -> Result<(), String> {
        // Without bytes there would be no end to how many may wait.
        if bytes.is_empty() || number < self.pieces || self.early.contains_key(&number) {
            let bytes = bytes.len();
            return Err(format!(
                "the peer sends a piece that cannot be: number {number}, of {bytes} bytes"
            ));
        }
        let waiting = self.bytes.len() as u64 + self.early_bytes;
        if waiting + bytes.len() as u64 > WINDOW_BYTES {
            return Err(format!(
                "the peer sends beyond its window of {WINDOW_BYTES} bytes"
            ));
        }
        if number == self.pieces {
            self.bytes.extend(bytes);
            self.pieces += 1;
            self.bring_early();
        } else if self.early.len() < EARLY_PIECES_MAX {
            self.early_bytes += bytes.len() as u64;
            self.early.insert(number, bytes.to_vec());
        } else {
            return Err(format!(
                "more than {EARLY_PIECES_MAX} pieces of the peer come before their turn"
            ));
        }
        Ok(())
    }

    /// Puts pieces behind the others that had come before their turn
    fn bring_early(&mut self) {
        while let Some(bytes) = self.early.remove(&self.pieces) {
            self.early_bytes -= bytes.len() as u64;
            self.bytes.extend(bytes);
            self.pieces += 1;
        }
    }

    /// Notes that a ticket has come, returning whether it is the first time
    fn note_ticket(&mut self, ticket: u64) -> bool {
        if ticket < self.tickets || !self.tickets_early.insert(ticket) {
            return false;
        }
        while self.tickets_early.remove(&self.tickets) {
            self.tickets += 1;
        }
        true
    }
}

/// Offers of a peer that wait at once: as many as sends and their segments can wait there
const OFFERS_MAX: usize = 1 << 20;

/// Most bytes that are kept of the reason why a segment does not come
const FAILURE_BYTES_MAX: usize = 256;

/// Pieces that come before their turn at once: twice as many as frames fit into the window, as each
/// takes memory beside its bytes, and a write may end in the middle of a frame
const EARLY_PIECES_MAX: usize = 2 * (WINDOW_BYTES as usize / HEADER_BYTES);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;

    fn read(inbox: &Inbox, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        let read = inbox.read(&mut [IoSliceMut::new(&mut buffer)]);
        buffer.truncate(read);
        buffer
    }

    #[test]
    fn pieces_out_of_order_are_read_in_order() {
        let inbox = Inbox::new(Doorbell::new().unwrap());
        inbox.handle_bytes(1, b"bc");
        inbox.handle_bytes(2, b"d");
        assert!(inbox.arm());
        assert_eq!(read(&inbox, 9), b"");
        inbox.handle_bytes(0, b"a");
        assert!(!inbox.arm());
        assert_eq!(read(&inbox, 2), b"ab");
        assert_eq!(read(&inbox, 9), b"cd");
        assert_eq!(inbox.pieces(), 3);
    }

    #[test]
    fn more_than_the_window_fails_the_connection() {
        let inbox = Inbox::new(Doorbell::new().unwrap());
        let piece = vec![0; WINDOW_BYTES as usize];
        inbox.handle_bytes(0, &piece);
        assert_eq!(inbox.failure(), None);
        inbox.handle_bytes(1, b"x");
        assert!(inbox.failure().unwrap().contains("window"));
    }

    #[test]
    fn a_piece_that_is_empty_or_comes_twice_fails_the_connection() {
        for (number, bytes) in [(7, &b""[..]), (0, b"x"), (2, b"x")] {
            let inbox = Inbox::new(Doorbell::new().unwrap());
            inbox.handle_bytes(0, b"a");
            inbox.handle_bytes(2, b"c");
            assert_eq!(inbox.failure(), None);
            inbox.handle_bytes(number, bytes);
            assert!(inbox.failure().unwrap().contains("cannot be"));
        }
    }

    #[test]
    fn pieces_before_their_turn_are_bounded_in_number() {
        let inbox = Inbox::new(Doorbell::new().unwrap());
        for number in 1..=EARLY_PIECES_MAX as u64 {
            inbox.handle_bytes(number, b"x");
        }
        assert_eq!(inbox.failure(), None);
        inbox.handle_bytes(u64::from(u32::MAX), b"x");
        assert!(inbox.failure().unwrap().contains("before their turn"));
    }

    #[test]
    fn a_segment_that_does_not_come_says_why_unless_it_is_over() {
        let inbox = Inbox::new(Doorbell::new().unwrap());
        inbox.handle_offer_failed(0, b"no device");
        inbox.handle_offer_failed(0, b"again");
        assert_eq!(inbox.take_failed(0).unwrap(), "no device");
        assert_eq!(inbox.take_failed(0), None);
        inbox.handle_offer_over(1);
        inbox.handle_offer_failed(1, b"too late");
        assert_eq!(inbox.take_failed(1), None);
        assert_eq!(inbox.held(), (0, 0, 0));
        inbox.handle_offer_failed(2, &[0xFF; 9999]);
        assert!(inbox.take_failed(2).unwrap().chars().count() <= FAILURE_BYTES_MAX);
    }

    #[test]
    fn a_ticket_is_new_once() {
        let mut came = Came::default();
        assert!(came.note_ticket(1));
        assert!(!came.note_ticket(1));
        assert!(came.note_ticket(0));
        assert!(!came.note_ticket(0) && !came.note_ticket(1));
        assert_eq!((came.tickets, came.tickets_early.len()), (2, 0));
    }
}
