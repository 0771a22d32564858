//! Every interleaving, within bounds, of who gives a lease and who gives it back
//!
//! `RUSTFLAGS='--cfg loom' cargo test -p backhaul-shm --release --lib loom`
//!
//! The block is a cell: loom fails a model in which the giver writes to it again while the taker
//! may still look.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::mpsc::{Receiver, Sender, channel};
use loom::thread;

use super::given::Given;
use super::table::Table;
use super::{SLOTS, TakenLeases, Ticket};

type Block = Arc<UnsafeCell<u8>>;

#[test]
fn block_is_reused_only_after_the_last_look_at_it() {
    loom::model(|| {
        let table = Table::new();
        let taken = TakenLeases::new(table.clone());
        let (send, receive) = channel();
        let taker = thread::spawn(move || take(&taken, &receive, 2));
        give(Given::new(table), &[send.clone(), send]);
        taker.join().unwrap();
    });
}

#[test]
fn slot_is_free_for_another_thread_once_the_giver_uses_it_again() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let table = Table::new();
        let taken = TakenLeases::new(table.clone());
        let (sends, takers): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (send, receive) = channel();
                let taken = taken.clone();
                (send, thread::spawn(move || take(&taken, &receive, 1)))
            })
            .unzip();
        give(Given::new(table), &sends);
        for taker in takers {
            taker.join().unwrap();
        }
    });
}

#[test]
fn leases_returned_by_two_threads_come_back_each_to_its_block() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let table = Table::new();
        let mut given = Given::new(table.clone());
        let taken = TakenLeases::new(table);
        let takers: Vec<_> = (0..SLOTS as u8)
            .map(|mark| {
                let block = block(mark);
                let ticket = given.issue(Arc::clone(&block)).unwrap();
                let taken = taken.clone();
                thread::spawn(move || look(&taken, ticket, &block, mark))
            })
            .collect();
        let mut back = Vec::new();
        while back.len() < takers.len() {
            thread::yield_now();
            let returned = given.take_returned();
            for block in &returned {
                // SAFETY: the lease is back, so nobody looks any more; loom checks it.
                block.with_mut(|cell| unsafe { *cell = 9 });
            }
            back.extend(returned);
        }
        for taker in takers {
            taker.join().unwrap();
        }
    });
}

#[test]
fn lease_is_back_and_so_is_every_later_one_however_its_return_meets_the_close() {
    loom::model(|| {
        let table = Table::new();
        let taken = TakenLeases::new(table.clone());
        let mut given = Given::new(table);
        let block = block(1);
        let ticket = given.issue(Arc::clone(&block)).unwrap();
        let receipt = taken.receipt(ticket, std::sync::Arc::new(())).unwrap();
        let closer = thread::spawn(move || taken.close());
        let looked_at = Arc::clone(&block);
        let taker = thread::spawn(move || {
            // SAFETY: the lease keeps the giver from writing; loom checks it.
            looked_at.with(|cell| assert_eq!(unsafe { *cell }, 1));
            drop(receipt);
        });
        for returned in given.take_returned() {
            // SAFETY: the lease is back, so nobody looks any more; loom checks it.
            returned.with_mut(|cell| unsafe { *cell = 9 });
            // It finds the slot as the other left it: that it comes back is seen below.
            given.issue(returned).unwrap();
        }
        closer.join().unwrap();
        taker.join().unwrap();
        assert_eq!(given.take_returned().len(), 1);
        // Nobody takes it.
        given.issue(block).unwrap();
        assert_eq!(given.take_returned().len(), 1);
    });
}

/// Writes to one block, leases it to the next taker, and waits until it is back
fn give(mut given: Given<Block>, takers: &[Sender<(Ticket, Block, u8)>]) {
    let block = block(0);
    for (mark, send) in (1..).zip(takers) {
        // SAFETY: no lease is out; loom checks it.
        block.with_mut(|cell| unsafe { *cell = mark });
        let ticket = given.issue(Arc::clone(&block)).unwrap();
        assert_eq!((ticket.slot, ticket.generation), (0, u32::from(mark)));
        send.send((ticket, Arc::clone(&block), mark)).unwrap();
        while given.take_returned().is_empty() {
            thread::yield_now();
        }
    }
}

fn take(taken: &TakenLeases, receive: &Receiver<(Ticket, Block, u8)>, rounds: u8) {
    for _ in 0..rounds {
        let (ticket, block, mark) = receive.recv().unwrap();
        look(taken, ticket, &block, mark);
    }
}

fn look(taken: &TakenLeases, ticket: Ticket, block: &Block, mark: u8) {
    let receipt = taken.receipt(ticket, std::sync::Arc::new(())).unwrap();
    // SAFETY: the lease keeps the giver from writing; loom checks it.
    block.with(|cell| assert_eq!(unsafe { *cell }, mark));
    drop(receipt);
}

fn block(mark: u8) -> Block {
    Arc::new(UnsafeCell::new(mark))
}
