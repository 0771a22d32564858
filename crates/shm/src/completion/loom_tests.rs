//! Every interleaving, within bounds, of the exporter and the importers of a lease
//!
//! `RUSTFLAGS='--cfg loom' cargo test -p backhaul-shm --release --lib loom`
//!
//! The block is a cell: loom fails a model in which the exporter writes to it again while the
//! importer may still read it.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::mpsc::{Receiver, Sender, channel};
use loom::thread;

use super::exported::Exported;
use super::words::Words;
use super::{ImportedLeases, SLOTS, Ticket};

type Block = Arc<UnsafeCell<u8>>;

#[test]
fn block_is_reused_only_after_its_last_read() {
    loom::model(|| {
        let words = Words::new();
        let imported = ImportedLeases::new(words.clone()).unwrap();
        let (send, receive) = channel();
        let importer = thread::spawn(move || import(&imported, &receive, 2));
        export_to(Exported::new(words), &[send.clone(), send]);
        importer.join().unwrap();
    });
}

#[test]
fn slot_is_free_for_another_thread_once_the_exporter_reuses_it() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let words = Words::new();
        let imported = ImportedLeases::new(words.clone()).unwrap();
        let (sends, importers): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (send, receive) = channel();
                let imported = imported.clone();
                (send, thread::spawn(move || import(&imported, &receive, 1)))
            })
            .unzip();
        export_to(Exported::new(words), &sends);
        for importer in importers {
            importer.join().unwrap();
        }
    });
}

#[test]
fn leases_returned_by_two_threads_release_each_its_own_block() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let words = Words::new();
        let mut exported = Exported::new(words.clone());
        let imported = ImportedLeases::new(words).unwrap();
        let importers: Vec<_> = (0..SLOTS as u8)
            .map(|mark| {
                let block = block(mark);
                let ticket = exported.issue(Arc::clone(&block)).unwrap();
                let imported = imported.clone();
                thread::spawn(move || import_one(&imported, ticket, &block, mark))
            })
            .collect();
        let mut back = Vec::new();
        while back.len() < importers.len() {
            thread::yield_now();
            let returned = exported.take_returned();
            for block in &returned {
                // SAFETY: the lease is returned, so no thread reads any more; loom checks it.
                block.with_mut(|cell| unsafe { *cell = 9 });
            }
            back.extend(returned);
        }
        for importer in importers {
            importer.join().unwrap();
        }
    });
}

#[test]
fn lease_and_every_later_one_are_returned_however_the_drop_of_a_receipt_races_with_close() {
    loom::model(|| {
        let words = Words::new();
        let imported = ImportedLeases::new(words.clone()).unwrap();
        let mut exported = Exported::new(words);
        let block = block(1);
        let ticket = exported.issue(Arc::clone(&block)).unwrap();
        let receipt = imported.receipt(ticket, std::sync::Arc::new(())).unwrap();
        let closer = thread::spawn(move || imported.close());
        let looked_at = Arc::clone(&block);
        let importer = thread::spawn(move || {
            // SAFETY: the lease keeps the exporter from writing; loom checks it.
            looked_at.with(|cell| assert_eq!(unsafe { *cell }, 1));
            drop(receipt);
        });
        for returned in exported.take_returned() {
            // SAFETY: the lease is returned, so no thread reads any more; loom checks it.
            returned.with_mut(|cell| unsafe { *cell = 9 });
            // Issued in the same slot, possibly before the importer closes; checked below.
            exported.issue(returned).unwrap();
        }
        closer.join().unwrap();
        importer.join().unwrap();
        assert_eq!(exported.take_returned().len(), 1);
        // No peer imports it.
        exported.issue(block).unwrap();
        assert_eq!(exported.take_returned().len(), 1);
    });
}

/// Writes to one block, leases it to the next importer, and waits until it is returned
fn export_to(mut exported: Exported<Block>, importers: &[Sender<(Ticket, Block, u8)>]) {
    let block = block(0);
    for (mark, send) in (1..).zip(importers) {
        // SAFETY: no lease is out; loom checks it.
        block.with_mut(|cell| unsafe { *cell = mark });
        let ticket = exported.issue(Arc::clone(&block)).unwrap();
        assert_eq!((ticket.slot, ticket.generation), (0, u32::from(mark)));
        send.send((ticket, Arc::clone(&block), mark)).unwrap();
        while exported.take_returned().is_empty() {
            thread::yield_now();
        }
    }
}

fn import(imported: &ImportedLeases, receive: &Receiver<(Ticket, Block, u8)>, rounds: u8) {
    for _ in 0..rounds {
        let (ticket, block, mark) = receive.recv().unwrap();
        import_one(imported, ticket, &block, mark);
    }
}

fn import_one(imported: &ImportedLeases, ticket: Ticket, block: &Block, mark: u8) {
    let receipt = imported.receipt(ticket, std::sync::Arc::new(())).unwrap();
    // SAFETY: the lease keeps the exporter from writing; loom checks it.
    block.with(|cell| assert_eq!(unsafe { *cell }, mark));
    drop(receipt);
}

fn block(mark: u8) -> Block {
    Arc::new(UnsafeCell::new(mark))
}
