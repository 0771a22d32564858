//! Records on their way to the socket, which a helper writes while the next are encrypted.
//!
//! The thread that takes the first buffer writes it, helper or owner, one at a time; so they go out
//! in order, and what a helper has not begun its owner does itself.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::buffer::Buffer;
use super::helpers::{self, Work};
use crate::runtime::lock;

/// Buffers of records that follow each other, and their socket
pub(super) struct Outlet {
    socket: Arc<TcpStream>,
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Buffer>,
    /// A thread writes the buffer that was the first
    is_busy: bool,
    /// A helper has been called, and has not come
    is_called: bool,
    /// Buffers that are out, and not reported to their owner
    out: usize,
    /// Why nothing more was written: the socket has no room, or an error
    stopped: Option<io::Error>,
}

/// Outcome of the oldest records
#[derive(Debug)]
pub(super) enum Flushed {
    /// So many buffers are out, more than zero; `alone` if a helper that was called did not come
    Buffers { count: usize, alone: bool },
    /// There are none
    Nothing,
}

impl Outlet {
    pub(super) fn new(socket: Arc<TcpStream>) -> Arc<Self> {
        Arc::new(Self {
            socket,
            state: Mutex::default(),
            moved: Condvar::new(),
        })
    }

    /// Takes records that come behind all others, and calls a helper if none is at it
    pub(super) fn push(self: &Arc<Self>, records: Buffer) {
        let mut state = lock(&self.state);
        state.waiting.push_back(records);
        let calls = !state.is_busy && !state.is_called && state.stopped.is_none();
        state.is_called |= calls;
        drop(state);
        if calls && !helpers::call(Arc::clone(self) as Arc<dyn Work>) {
            lock(&self.state).is_called = false;
        }
    }

    /// Waits until the oldest buffer is out, and writes it if no other thread does
    ///
    /// # Errors
    ///
    /// Errors that the system reports: [`io::ErrorKind::WouldBlock`] if the socket has no room. The
    /// records stay.
    pub(super) fn flush_oldest(&self) -> io::Result<Flushed> {
        let mut alone = false;
        let mut state = lock(&self.state);
        loop {
            if state.out > 0 {
                let count = std::mem::take(&mut state.out);
                return Ok(Flushed::Buffers { count, alone });
            }
            if state.is_busy {
                state = self.wait(state);
            } else if let Some(error) = state.stopped.take() {
                return Err(error);
            } else if state.waiting.is_empty() {
                return Ok(Flushed::Nothing);
            } else {
                alone |= state.is_called;
                state = self.write_first(state);
            }
        }
    }

    fn write_first<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(mut buffer) = state.waiting.pop_front() else {
            return state;
        };
        state.is_busy = true;
        drop(state);
        let written = write_all(&self.socket, &mut buffer);
        // Its memory is for the next, before that is made.
        let left = (!buffer.is_empty()).then_some(buffer);
        let mut state = lock(&self.state);
        state.is_busy = false;
        match left {
            Some(buffer) => state.waiting.push_front(buffer),
            None => state.out += 1,
        }
        state.stopped = written.err();
        self.moved.notify_all();
        state
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.moved.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work for Outlet {
    fn help(&self) {
        let mut state = lock(&self.state);
        state.is_called = false;
        loop {
            if state.is_busy {
                // The owner did not wait for us; what it makes next is ours.
                state = self.wait(state);
            } else if state.stopped.is_none() && !state.waiting.is_empty() {
                state = self.write_first(state);
                helpers::count_written();
            } else {
                return;
            }
        }
    }
}

/// Writes until nothing is left
pub(super) fn write_all(mut socket: &TcpStream, records: &mut Buffer) -> io::Result<()> {
    while !records.is_empty() {
        match socket.write(records.filled()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => records.drop_front(bytes),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn records_go_out_in_order_whoever_writes_and_wait_where_there_is_no_room() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        let outlet = Outlet::new(Arc::new(socket));
        let mut said = 0_u32;
        let mut heard = Vec::new();
        let mut blocked = 0;
        let mut under_way = 0;
        while blocked < 3 {
            while under_way < 3 {
                let mut records = Buffer::new();
                for word in records.room().chunks_exact_mut(4) {
                    word.copy_from_slice(&said.to_le_bytes());
                    said += 1;
                }
                let bytes = records.room().len();
                records.fill(bytes);
                outlet.push(records);
                under_way += 1;
            }
            match outlet.flush_oldest() {
                Ok(Flushed::Buffers { count, .. }) => under_way -= count,
                Ok(Flushed::Nothing) => panic!("{under_way} buffers are under way"),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    blocked += 1;
                    let mut some = vec![0; 1 << 20];
                    far.read_exact(&mut some).unwrap();
                    heard.extend(some);
                }
            }
        }
        let reader = std::thread::spawn(move || {
            far.read_to_end(&mut heard).unwrap();
            heard
        });
        while under_way > 0 {
            match outlet.flush_oldest() {
                Ok(Flushed::Buffers { count, .. }) => under_way -= count,
                Ok(Flushed::Nothing) => panic!("{under_way} buffers are under way"),
                Err(_) => std::thread::yield_now(),
            }
        }
        assert!(matches!(outlet.flush_oldest(), Ok(Flushed::Nothing)));
        outlet.socket.shutdown(std::net::Shutdown::Write).unwrap();
        let heard = reader.join().unwrap();
        assert_eq!(heard.len(), 4 * said as usize);
        assert!(
            heard
                .chunks_exact(4)
                .zip(0_u32..)
                .all(|(word, at)| word == at.to_le_bytes())
        );
    }

    #[test]
    fn an_error_of_the_socket_reaches_the_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let outlet = Outlet::new(Arc::new(socket));
        let mut records = Buffer::new();
        records.room()[0] = 1;
        records.fill(1);
        outlet.push(records);
        let error = outlet.flush_oldest().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
