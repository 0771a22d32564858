//! A tap: a stream that gets each untagged message of a connection before receives do.
//!
//! While there is one, the link's untagged receives are the tap's own, and those of callers wait
//! here. The thread that moves the connection along notes what arrives, and the engine alone gives
//! it to the [`FrameStream`], without a lock: so the stream may send, on this connection and on
//! others. A message that the stream does not take goes to callers, with all that comes after it,
//! until they say that they have caught up: the order stays.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, TryLockError};

use backhaul_proto::{MessageKind, Selector};

use super::Conn;
use super::port::{Command, Port, RecvCompleter, RecvToken, Work};
use crate::error::{CloseReason, RecvError, SendError};
use crate::link::{Content, Delivery, Now, Recv};
use crate::memory::{PoolBuf, Segments};
use crate::request::{Request, WakeList};
use crate::runtime::lock;

/// Has the untagged messages of a connection before its receives; see [`Frames::tap`]
pub trait FrameStream: Send + Sync {
    /// Handles the segments of a message on the engine's thread; `false` leaves it to receives,
    /// and with it all that follow until these have caught up
    ///
    /// No message is given to two streams at once that are on endpoints of one context.
    fn handle(&self, segments: &[PoolBuf]) -> bool;

    /// Nothing more has arrived for now; tells whether something is likely to, very soon
    ///
    /// The engine stays awake for it then, as long as that pays.
    fn handled_all(&self) -> bool;
}

/// The untagged messages of a connection, for another object than the holder of its endpoint
///
/// It does not keep the connection open.
#[derive(Clone, Debug)]
pub struct Frames(Arc<Conn>);

/// Result of a receive of the tap
type Arrived = Result<Delivery, RecvError>;

/// A tap, and what it keeps from callers
pub(super) struct Tap {
    stream: Arc<dyn FrameStream>,
    /// Receives of the tap, oldest first, with their results: a long message may be there after
    /// a later one
    posted: VecDeque<(u64, Option<Arrived>)>,
    /// Messages that the engine is to give to the stream
    arrived: VecDeque<Arrived>,
    /// Messages that the stream has left to callers
    passed: VecDeque<Arrived>,
    /// Receives of callers, with the names of their operations
    waiting: VecDeque<(u64, RecvToken)>,
    /// Callers have messages that they have yet to handle, or may have
    is_passing: bool,
    /// Messages that receives of callers got
    given: u64,
    /// The link has ended
    has_ended: bool,
}

impl Tap {
    /// Takes a receive of a caller out, if it waits here
    fn withdraw(&mut self, operation: u64) -> Option<RecvToken> {
        let place = self.waiting.iter().position(|(one, _)| *one == operation)?;
        self.waiting.remove(place).map(|(_, token)| token)
    }

    /// Takes back a message that a caller did not look at, in its order
    fn take_back(&mut self, delivery: Delivery) {
        self.is_passing = true;
        self.given = self.given.saturating_sub(1);
        let is_before = |other: &Arrived| {
            other
                .as_ref()
                .is_ok_and(|other| other.message < delivery.message)
        };
        let place = self.passed.partition_point(is_before);
        self.passed.insert(place, Ok(delivery));
    }
}

impl Frames {
    pub(crate) fn new(conn: &Arc<Conn>) -> Self {
        Self(Arc::clone(conn))
    }

    /// Sends segments as one message; as [`crate::Endpoint::send_frames`]
    pub fn send(&self, segments: Segments) -> Request<(), SendError> {
        self.0.send(MessageKind::Untagged, segments)
    }

    /// Has a stream hear each message before receives do, on the engine's thread
    ///
    /// Gives how many receives waited, and wait on; others that were posted before are over. At
    /// first all messages are left to receives, until [`Frames::caught_up`].
    ///
    /// # Errors
    ///
    /// [`CloseReason`] if the connection has ended.
    pub fn tap(&self, stream: Arc<dyn FrameStream>) -> Result<usize, CloseReason> {
        self.0.tap(stream)
    }

    /// Takes the stream away, if there is one; it is not called any more when this returns
    ///
    /// Waits while the engine is in it, so the caller must hold nothing that the engine waits for.
    pub fn untap(&self) {
        self.0.untap();
    }

    /// Says that so many messages, of those that receives got since the tap, have been handled
    ///
    /// If these are all, the stream has the next one.
    pub fn caught_up(&self, handled: u64) {
        self.0.tap_caught_up(handled);
    }

    /// Returns whether the connection has ended, or is being closed from here
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Conn {
    /// Installs a tap, in the place of the one before; gives how many receives wait for messages
    pub(crate) fn tap(
        self: &Arc<Self>,
        stream: Arc<dyn FrameStream>,
    ) -> Result<usize, CloseReason> {
        self.untap();
        let _running = lock(&self.tap_running);
        let count = self.with_port(|port| {
            let mut wakes = WakeList::new();
            // Receives that lie in the inbox are callers' too.
            self.take_commands(port, &mut wakes);
            self.dispatch(port, &mut wakes);
            if !port.link.is_open() {
                return (None, wakes);
            }
            let waiting = port.link.withdraw_untagged(&Now::lazy());
            let count = waiting.len();
            let mut slot = lock(&self.tap);
            let tap = slot.insert(Tap {
                stream,
                posted: VecDeque::new(),
                arrived: VecDeque::new(),
                passed: VecDeque::new(),
                waiting: waiting.into(),
                is_passing: true,
                given: 0,
                has_ended: false,
            });
            self.is_tapped.store(true, Ordering::SeqCst);
            self.top_up(tap, port);
            drop(slot);
            (Some(count), wakes)
        });
        let (count, wakes) = count;
        for waker in wakes {
            waker.wake();
        }
        let Some(count) = count else {
            let reason = self.close_reason().cloned();
            return Err(reason.unwrap_or(CloseReason::Local));
        };
        self.interest.leave_loop();
        self.call_engine();
        Ok(count)
    }

    /// Takes the tap away, if there is one; the stream is not called afterwards
    ///
    /// Waits until the engine is out of the stream. Messages that the stream has not been given go
    /// to receives.
    pub(crate) fn untap(&self) {
        if self.is_tapped.load(Ordering::SeqCst) {
            let _running = lock(&self.tap_running);
            self.end_tap();
        }
    }

    /// Hears from the callers how many messages they have got and handled, of those since the tap
    pub(crate) fn tap_caught_up(&self, handled: u64) {
        if let Some(tap) = &mut *lock(&self.tap)
            && handled >= tap.given
            && tap.passed.is_empty()
        {
            tap.is_passing = false;
        }
    }

    /// Takes away the tap while no thread runs it
    fn end_tap(&self) {
        self.with_port(|port| {
            let Some(tap) = lock(&self.tap).take() else {
                return;
            };
            self.is_tapped.store(false, Ordering::SeqCst);
            let now = Now::lazy();
            let mut arrived: Vec<_> = tap.passed.into_iter().chain(tap.arrived).collect();
            for (operation, result) in tap.posted {
                match result {
                    Some(result) => arrived.push(result),
                    None => port.link.cancel(&now, operation),
                }
            }
            for delivery in arrived.into_iter().filter_map(Result::ok) {
                port.link.restore(&now, delivery);
            }
            for (operation, token) in tap.waiting {
                port.link.post_recv(&now, untagged(operation, token));
            }
            port.work(Work::SUBMIT);
        });
    }

    /// Gives the stream what has arrived, as the engine
    pub(super) fn run_tap(&self) {
        while self.tap_due.load(Ordering::SeqCst) {
            let running = match self.tap_running.try_lock() {
                Ok(running) => running,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // The thread that takes the tap away takes what has arrived with it.
                Err(TryLockError::WouldBlock) => return,
            };
            self.tap_due.store(false, Ordering::SeqCst);
            self.run_tap_once();
            drop(running);
        }
    }

    fn run_tap_once(&self) {
        let mut stream = None;
        loop {
            let (arrived, is_passing) = {
                let mut tap = lock(&self.tap);
                let Some(tap) = tap.as_mut() else {
                    return;
                };
                let Some(arrived) = tap.arrived.pop_front() else {
                    break;
                };
                stream.get_or_insert_with(|| Arc::clone(&tap.stream));
                (arrived, tap.is_passing)
            };
            let is_taken = !is_passing
                && match (&arrived, &stream) {
                    (
                        Ok(Delivery {
                            content: Content::Segments(memory),
                            ..
                        }),
                        Some(stream),
                    ) if memory.device.is_empty() => stream.handle(&memory.host),
                    _ => false,
                };
            if !is_taken {
                self.pass(arrived);
            }
        }
        if stream.is_some_and(|stream| stream.handled_all()) {
            self.engine.expect();
        }
        let (has_ended, has_room) = match &*lock(&self.tap) {
            Some(tap) => (tap.has_ended, tap.posted.len() < POSTED),
            None => return,
        };
        if has_ended {
            self.end_tap();
        } else if has_room {
            self.refill_tap();
        }
    }

    /// Leaves a message to callers
    fn pass(&self, arrived: Arrived) {
        let mut wakes = WakeList::new();
        if let Some(tap) = &mut *lock(&self.tap) {
            tap.is_passing = true;
            tap.passed.push_back(arrived);
            self.serve(tap, &mut wakes);
        }
        for waker in wakes {
            waker.wake();
        }
    }

    /// Gives callers what was left to them
    fn serve(&self, tap: &mut Tap, wakes: &mut WakeList) {
        while !tap.passed.is_empty()
            && let Some((_, token)) = tap.waiting.pop_front()
            && let Some(arrived) = tap.passed.pop_front()
        {
            let RecvCompleter::Allocate(completer) = token.completer else {
                unreachable!("callers receive untagged messages in memory of their own");
            };
            match completer.complete(arrived.map(Delivery::into_message), wakes) {
                None => tap.given += 1,
                // No caller waits for it any more.
                Some(message) => tap.passed.push_front(Ok(Delivery::from(message))),
            }
        }
    }

    /// Handles a caller's command while a tap is installed, and returns the command if the tap does
    /// not apply
    ///
    /// The caller holds the port, because a tap comes and goes: a receive that found no tap, and
    /// was posted behind those of a tap that has come since, would get a message before older ones
    /// that are left to callers.
    pub(super) fn handle_behind_tap(
        &self,
        port: &mut Port,
        command: Command,
        wakes: &mut WakeList,
    ) -> Option<Command> {
        let mut slot = lock(&self.tap);
        let Some(tap) = slot.as_mut() else {
            return Some(command);
        };
        match command {
            Command::Recv(Recv {
                operation,
                selector: Selector::Untagged,
                token,
                ..
            }) => {
                tap.waiting.push_back((operation, token));
                self.serve(tap, wakes);
                self.top_up(tap, port);
                None
            }
            Command::Cancel(operation) => match tap.withdraw(operation) {
                Some(token) => {
                    if let RecvCompleter::Allocate(completer) = token.completer {
                        completer.complete(Err(RecvError::Cancelled), wakes);
                    }
                    None
                }
                None => Some(Command::Cancel(operation)),
            },
            Command::Restore(delivery) if delivery.kind == MessageKind::Untagged => {
                tap.take_back(delivery);
                self.serve(tap, wakes);
                None
            }
            other => Some(other),
        }
    }

    /// Notes the result of a receive of the tap; the caller holds the port
    pub(super) fn handle_tapped(&self, port: &mut Port, operation: u64, result: Arrived) {
        let mut slot = lock(&self.tap);
        let Some(tap) = slot.as_mut() else {
            drop(slot);
            if let Ok(delivery) = result {
                port.link.restore(&Now::lazy(), delivery);
            }
            return;
        };
        let mut posted = tap.posted.iter_mut();
        if let Some((_, place)) = posted.find(|(one, _)| *one == operation) {
            *place = Some(result);
        }
        while let Some((_, Some(_))) = tap.posted.front()
            && let Some((_, Some(result))) = tap.posted.pop_front()
        {
            if port.link.is_open() || result.is_ok() {
                tap.arrived.push_back(result);
            } else {
                tap.has_ended = true;
            }
        }
        self.top_up(tap, port);
        drop(slot);
        self.tap_due.store(true, Ordering::SeqCst);
    }

    /// Handles what has arrived, after any thread has held the port
    #[inline]
    pub(super) fn settle_tap(&self) {
        if self.tap_due.load(Ordering::Relaxed) {
            self.have_tap_run();
        }
    }

    fn have_tap_run(&self) {
        if self.closed.get().is_none() {
            return self.call_engine();
        }
        // The engine does not come any more. It may be in the stream still, and then looks again.
        fence(Ordering::SeqCst);
        let running = match self.tap_running.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.tap_due.store(false, Ordering::SeqCst);
        self.end_tap();
        drop(running);
    }

    fn refill_tap(&self) {
        self.with_port(|port| {
            if let Some(tap) = &mut *lock(&self.tap) {
                self.top_up(tap, port);
            }
        });
    }

    /// Posts receives, unless callers have much to take
    ///
    /// Also when the link has ended: they get what had arrived, and then fail.
    fn top_up(&self, tap: &mut Tap, port: &mut Port) {
        while tap.posted.len() < POSTED
            && tap.passed.len() + tap.arrived.len() < LEFT_MAX
            && !tap.has_ended
        {
            let operation = self.next_operation();
            tap.posted.push_back((operation, None));
            let token = RecvToken {
                completer: RecvCompleter::Tap(operation),
                started: None,
            };
            port.link
                .post_recv(&Now::lazy(), untagged(operation, token));
        }
    }
}

fn untagged(operation: u64, token: RecvToken) -> Recv<RecvToken> {
    Recv {
        operation,
        selector: Selector::Untagged,
        buffer: None,
        token,
    }
}

/// Receives that a tap keeps posted: a message that finds one is handed over at once
const POSTED: usize = 16;

/// Messages that callers have not taken, beyond which the sender waits
const LEFT_MAX: usize = 256;
