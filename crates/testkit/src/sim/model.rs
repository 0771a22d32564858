//! Reference model of one direction of a connection, by the simplest means: lists that are
//! searched.
//!
//! The model gets a call when a message starts at its receiver, and for every command there, so it
//! knows which receive meets which message: receives prefer the message sent first, messages the
//! receive posted first, and a message that goes back goes back to its place.

use std::collections::BTreeMap;

use backhaul::seams::{Content, Delivery};
use backhaul::{CloseReason, RecvBuffer, RecvError, RecvMemory, RecvRefused, SendError};
use backhaul_proto::{MessageKind, Selector};

use super::lane::Start;
use crate::toy::device;

/// One direction of a connection, and all that was asked of it
#[derive(Debug, Default)]
pub(super) struct Direction {
    sends: Vec<SendState>,
    /// Sends before this one have started, or never will
    next_start: usize,
    /// By number
    messages: Vec<MessageState>,
    /// Receives that wait for a message, in the order in which they were posted
    posted: Vec<u64>,
    recvs: BTreeMap<u64, RecvState>,
    /// Receives that may fail for want of memory: a carrier lost what was given, or memory of a
    /// device had to be given back in the middle of a message
    pub(super) losses: usize,
    lost: usize,
    /// A message went back that a receive had met
    has_returned: bool,
}

#[derive(Debug)]
struct SendState {
    operation: u64,
    kind: MessageKind,
    parts: Vec<Part>,
    is_over: bool,
    /// It was withdrawn, or refused, so that nothing of it left
    is_absent: bool,
    is_sent: bool,
}

/// A segment of a message
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) bytes: usize,
    pub(super) is_device: bool,
}

#[derive(Debug)]
struct MessageState {
    send: usize,
    kind: MessageKind,
    stage: Stage,
    is_eager: bool,
    /// It went through a buffer, which knows of no segments
    is_one_segment: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Unmet,
    Met(u64),
    Over,
}

#[derive(Clone, Copy, Debug)]
struct RecvState {
    selector: Selector,
    capacity: Option<usize>,
    is_device: bool,
}

impl Direction {
    /// A message was posted; its number among them is the seed of its content
    pub(super) fn send(&mut self, operation: u64, kind: MessageKind, parts: Vec<Part>) {
        self.sends.push(SendState {
            operation,
            kind,
            parts,
            is_over: false,
            is_absent: false,
            is_sent: false,
        });
    }

    /// The seed of the next message
    pub(super) fn next_seed(&self) -> u64 {
        self.sends.len() as u64
    }

    /// A send is over; `is_new`: within the call that posted it
    pub(super) fn sent(&mut self, operation: u64, result: &Result<(), SendError>, is_new: bool) {
        let next_start = self.next_start;
        let found = self.sends.iter_mut().enumerate();
        let mut found = found.filter(|(_, send)| send.operation == operation);
        let (index, send) = found.next().expect("an outcome belongs to a send");
        assert!(!send.is_over, "send {operation} is over twice");
        send.is_over = true;
        match result {
            Ok(()) => send.is_sent = true,
            Err(SendError::Cancelled | SendError::Refused(_)) => {
                assert!(index >= next_start, "message {index} left all the same");
                send.is_absent = true;
            }
            Err(SendError::Closed(_)) => send.is_absent = is_new,
            Err(error) => panic!("send {operation}: {error}"),
        }
    }

    /// A message starts at its receiver
    pub(super) fn start(&mut self, start: Start) {
        while self.sends[self.next_start].is_absent {
            self.next_start += 1;
        }
        let send = &self.sends[self.next_start];
        assert_eq!(start.message, self.messages.len() as u64);
        assert_eq!(start.kind, send.kind, "message {start:?}");
        assert_eq!(start.bytes, send.bytes() as u64, "message {start:?}");
        let has_device = send.has_device() && start.bytes > 0;
        assert!(!(start.is_eager && has_device), "a device cannot be eager");
        self.messages.push(MessageState {
            send: self.next_start,
            kind: send.kind,
            stage: Stage::Unmet,
            is_eager: start.is_eager,
            is_one_segment: false,
        });
        self.next_start += 1;
        self.offer(start.message as usize);
    }

    /// A receive is posted
    pub(super) fn post(
        &mut self,
        recv: u64,
        selector: Selector,
        capacity: Option<usize>,
        is_device: bool,
    ) {
        let state = RecvState {
            selector,
            capacity,
            is_device,
        };
        self.recvs.insert(recv, state);
        let mut unmet = self.messages.iter_mut();
        match unmet.find(|message| message.stage == Stage::Unmet && wants(selector, message.kind)) {
            Some(message) => message.stage = Stage::Met(recv),
            None => self.posted.push(recv),
        }
    }

    /// A receive is posted into memory that no carrier reaches
    pub(super) fn post_refused(&mut self, recv: u64, selector: Selector, capacity: Option<usize>) {
        let state = RecvState {
            selector,
            capacity,
            is_device: true,
        };
        self.recvs.insert(recv, state);
    }

    /// A receive is over, one way or another
    pub(super) fn over(&mut self, recv: u64) {
        let state = self.recvs.remove(&recv);
        assert!(state.is_some(), "receive {recv} is over twice");
    }

    /// A receive got a message
    pub(super) fn received(&mut self, recv: u64, delivery: &mut Delivery, checks_content: bool) {
        let state = self.recvs.remove(&recv);
        let state = state.expect("an outcome belongs to a receive");
        let number = delivery.message as usize;
        let message = &mut self.messages[number];
        assert_eq!(message.stage, Stage::Met(recv), "message {number}");
        message.stage = Stage::Over;
        let send = &self.sends[message.send];
        assert_eq!(delivery.kind, send.kind, "message {number}");
        assert_eq!(delivery.bytes, send.bytes() as u64, "message {number}");
        if checks_content {
            send.check(message, delivery, state.capacity);
        }
        message.is_one_segment |= state.capacity.is_some();
    }

    /// A receive failed; `has_ended`: so has the link, or its closing has begun
    pub(super) fn failed(&mut self, recv: u64, error: &RecvError, has_ended: bool) {
        match error {
            RecvError::Cancelled | RecvError::Closed(_) => {
                let is_closed = matches!(error, RecvError::Closed(_));
                assert!(!is_closed || has_ended, "receive {recv}: {error} too early");
                self.withdraw(recv);
            }
            RecvError::Refused(RecvRefused::NoCarrier { .. }) => self.refuse(recv),
            RecvError::Truncated {
                message_bytes,
                capacity_bytes,
            } => {
                let (message, state) = self.take_met(recv);
                let bytes = self.sends[self.messages[message].send].bytes();
                assert_eq!(*message_bytes, bytes as u64, "message {message}");
                assert_eq!(Some(*capacity_bytes as usize), state.capacity);
                assert!(capacity_bytes < message_bytes);
            }
            RecvError::OutOfMemory { .. } => {
                let (message, _) = self.take_met(recv);
                self.lost += 1;
                assert!(
                    self.lost <= self.losses,
                    "message {message} was lost for no reason"
                );
            }
            error => panic!("receive {recv}: {error}"),
        }
    }

    /// A message that was delivered goes back
    pub(super) fn restore(&mut self, message: u64) {
        self.has_returned = true;
        let message = message as usize;
        assert_eq!(self.messages[message].stage, Stage::Over);
        self.messages[message].stage = Stage::Unmet;
        self.offer(message);
    }

    /// Returns whether a receive has met a message that it has not got, in memory of a device
    pub(super) fn fills_device(&self, recv: u64) -> bool {
        let is_met = |message: &MessageState| message.stage == Stage::Met(recv);
        self.recvs.get(&recv).is_some_and(|state| state.is_device)
            && self.messages.iter().any(is_met)
    }

    /// A receive that is not over
    pub(super) fn some_recv(&self, nth: usize) -> Option<u64> {
        let count = self.recvs.len().max(1);
        self.recvs.keys().nth(nth % count).copied()
    }

    /// A send that is not over
    pub(super) fn some_send(&self, nth: usize) -> Option<u64> {
        let live = || self.sends.iter().filter(|send| !send.is_over);
        let count = live().count().max(1);
        live().nth(nth % count).map(|send| send.operation)
    }

    /// Eager bytes, and messages, that wait for a receive
    pub(super) fn waiting(&self) -> (usize, usize) {
        let unmet = self.messages.iter();
        let unmet = unmet.filter(|message| message.stage == Stage::Unmet);
        let bytes = unmet.clone().filter(|message| message.is_eager);
        let bytes = bytes.map(|message| self.sends[message.send].bytes()).sum();
        (bytes, unmet.count())
    }

    /// Returns whether the messages that wait have all come from the peer once
    pub(super) fn has_returned(&self) -> bool {
        self.has_returned
    }

    /// Checks that whatever is not over waits for a caller, as nothing can move
    pub(super) fn check_at_rest(&self) {
        for (number, message) in self.messages.iter().enumerate() {
            let send = &self.sends[message.send];
            match message.stage {
                Stage::Met(recv) => panic!("receive {recv} does not get message {number}"),
                Stage::Over => assert!(send.is_over, "{send:?} is received, and not over"),
                Stage::Unmet => {
                    let waits = !send.is_over;
                    assert!(!(waits && message.is_eager), "{send:?} needs no receive");
                }
            }
        }
        let mut left = self.sends[self.next_start..].iter();
        if let Some(send) = left.find(|send| !send.is_absent) {
            assert!(
                self.waiting().1 > 0,
                "{send:?} waits, and nothing else does"
            );
        }
    }

    /// Checks that nothing is left once everything was received
    pub(super) fn check_received(&self) {
        for send in &self.sends {
            assert!(send.is_over, "{send:?} is not over");
        }
        let absent = self.sends.iter().filter(|send| send.is_absent);
        let missing = self.sends.len() - absent.count() - self.messages.len();
        assert_eq!(missing, 0, "messages never came");
        self.check_sent_is_received();
    }

    /// Checks that each message whose send succeeded was received
    pub(super) fn check_sent_is_received(&self) {
        let mut over = vec![false; self.sends.len()];
        for message in &self.messages {
            over[message.send] = message.stage == Stage::Over;
        }
        for (send, over) in self.sends.iter().zip(over) {
            assert!(
                over || !send.is_sent,
                "{send:?} was sent, and never received"
            );
        }
    }

    /// Checks that each operation is over
    pub(super) fn check_over(&self) {
        for send in &self.sends {
            assert!(send.is_over, "{send:?} is not over");
        }
        assert!(self.recvs.is_empty(), "not over: {:?}", self.recvs);
    }

    /// Gives a message to the first receive that wants it
    fn offer(&mut self, message: usize) {
        let kind = self.messages[message].kind;
        let recvs = &self.recvs;
        let found = self.posted.iter();
        let mut found = found.enumerate();
        let found = found.find(|(_, recv)| wants(recvs[recv].selector, kind));
        if let Some((index, recv)) = found {
            self.messages[message].stage = Stage::Met(*recv);
            self.posted.remove(index);
        }
    }

    /// Takes a receive out, whose message goes to another
    fn withdraw(&mut self, recv: u64) {
        self.recvs.remove(&recv).expect("an outcome has a receive");
        self.posted.retain(|posted| *posted != recv);
        let met = Stage::Met(recv);
        let met = self
            .messages
            .iter()
            .position(|message| message.stage == met);
        if let Some(message) = met {
            self.has_returned = true;
            self.messages[message].stage = Stage::Unmet;
            self.offer(message);
        }
    }

    /// A receive has no place that a carrier reaches
    fn refuse(&mut self, recv: u64) {
        let is_device = self.recvs[&recv].is_device;
        let met = Stage::Met(recv);
        if !self.messages.iter().any(|message| message.stage == met) {
            assert!(is_device, "receive {recv} was refused for no reason");
            return self.withdraw(recv);
        }
        let (message, _) = self.take_met(recv);
        let send = &self.sends[self.messages[message].send];
        let may_be = is_device || send.has_device();
        assert!(may_be, "{send:?} was refused for no reason");
    }

    /// Takes a receive out with the message it has met, which is consumed
    fn take_met(&mut self, recv: u64) -> (usize, RecvState) {
        let state = self.recvs.remove(&recv).expect("an outcome has a receive");
        let met = Stage::Met(recv);
        let message = self
            .messages
            .iter()
            .position(|message| message.stage == met);
        let message = message.expect("a receive fails with a message it has met");
        self.messages[message].stage = Stage::Over;
        (message, state)
    }
}

impl SendState {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    fn has_device(&self) -> bool {
        self.parts.iter().any(|part| part.is_device)
    }

    fn check(&self, message: &MessageState, delivery: &mut Delivery, capacity: Option<usize>) {
        let seed = message.send as u64;
        match &mut delivery.content {
            Content::Into(buffer) => {
                let bytes = self.bytes();
                assert!(capacity.is_some_and(|capacity| bytes <= capacity));
                check_content(seed, 0, &in_buffer(&mut **buffer)[..bytes]);
            }
            Content::Segments(memory) => {
                assert_eq!(capacity, None);
                let mut found: Vec<Vec<u8>> =
                    memory.host.iter().map(|host| host.to_vec()).collect();
                for (index, memory) in &memory.device {
                    assert!(found[*index].is_empty());
                    found[*index] = device::download(memory);
                }
                if !message.is_one_segment {
                    let layout = self.parts.iter().map(|part| part.bytes);
                    let found = found.iter().map(Vec::len);
                    assert!(layout.eq(found), "message {seed} has another layout");
                    let is_device = |index: &usize| self.parts[*index].is_device;
                    let mut devices = memory.device.iter().map(|(index, _)| index);
                    assert!(devices.all(is_device), "message {seed} changed its memory");
                }
                let mut at = 0;
                for part in found {
                    check_content(seed, at, &part);
                    at += part.len();
                }
                assert_eq!(at, self.bytes());
            }
        }
    }
}

/// Why a link that has ended may fail what it holds
pub(super) fn is_said(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::Local | CloseReason::Peer { .. })
}

/// The content of a message of a seed
pub(super) fn content(seed: u64, at: usize, bytes: usize) -> Vec<u8> {
    (at..at + bytes).map(|at| byte_of(seed, at)).collect()
}

#[track_caller]
fn check_content(seed: u64, at: usize, found: &[u8]) {
    for (at, found) in (at..).zip(found) {
        assert_eq!(*found, byte_of(seed, at), "byte {at} of message {seed}");
    }
}

fn byte_of(seed: u64, at: usize) -> u8 {
    // An odd multiplier; the high bits depend on all others.
    let mixed = (seed << 32 ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

fn in_buffer(buffer: &mut dyn RecvBuffer) -> Vec<u8> {
    match buffer.memory() {
        RecvMemory::Host(host) => host.to_vec(),
        RecvMemory::Device(memory) => device::download(memory),
    }
}

fn wants(selector: Selector, kind: MessageKind) -> bool {
    match (selector, kind) {
        (Selector::Untagged, MessageKind::Untagged) => true,
        (Selector::Tagged { tag, mask }, MessageKind::Tagged(sent)) => sent.matches(tag, mask),
        _ => false,
    }
}
