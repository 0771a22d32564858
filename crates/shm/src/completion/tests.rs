#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::arena::{Arena, ArenaBuf, ArenaConfig};
use crate::leased::{Leased, read_leased};

#[test]
fn lease_is_returned_once_its_receipt_is_dropped() {
    let (mut exporter, fd) = create_table().unwrap();
    let importer = attach_table(fd).unwrap();
    let buffer = buffer();
    for generation in 1..4 {
        let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
        assert_eq!(ticket.generation, generation);
        assert_eq!(Ticket::from(u64::from(ticket)), ticket);
        let receipt = importer.imported.receipt(ticket, Arc::new(())).unwrap();
        assert_eq!(exporter.exported.sweep(), 0);
        assert_eq!(exporter.exported.outstanding_bytes(), buffer.len() as u64);
        drop(receipt);
        assert_eq!(exporter.exported.sweep(), 1);
        assert_eq!(exporter.exported.outstanding(), 0);
    }
}

#[test]
fn mapped_lease_shows_the_bytes_and_keeps_its_own_changes() {
    let (mut exporter, mut importer) = table_in_process().unwrap();
    let mut buffer = buffer();
    buffer.fill(5);
    let lease = buffer.lease().unwrap();
    let (fd, offset) = (
        lease.descriptor().try_clone_to_owned().unwrap(),
        lease.offset(),
    );
    let mut copy = vec![0; buffer.len()];
    read_leased(lease.descriptor(), offset, &mut copy).unwrap();
    assert_eq!(copy, *buffer);
    let ticket = exporter.exported.issue(lease).unwrap();
    let receipt = importer.imported.receipt(ticket, Arc::new(())).unwrap();
    let mut leased = Leased::map(fd, offset, buffer.len(), true, receipt).unwrap();
    assert_eq!(*leased, *buffer);
    leased.fill(6);
    assert!(buffer.iter().all(|byte| *byte == 5));
    drop(leased);
    assert_eq!(exporter.exported.sweep(), 1);
    importer.exported.return_all();
}

#[test]
fn importer_learns_that_the_owner_has_freed_the_block() {
    let (mut exporter, fd) = create_table().unwrap();
    let importer = attach_table(fd).unwrap();
    let (kept, freed) = (buffer(), buffer());
    let mut import = |buffer: &ArenaBuf| {
        let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
        importer.imported.receipt(ticket, Arc::new(())).unwrap()
    };
    let (of_kept, of_freed) = (import(&kept), import(&freed));
    drop(freed);
    assert!(!of_freed.is_freed());
    exporter.exported.mark_freed();
    assert!(of_freed.is_freed() && !of_kept.is_freed());
    // The next lease of the slot is another.
    drop(of_freed);
    assert_eq!(exporter.exported.sweep(), 1);
    let ticket = exporter.exported.issue(kept.lease().unwrap()).unwrap();
    let again = importer.imported.receipt(ticket, Arc::new(())).unwrap();
    exporter.exported.mark_freed();
    assert!(!again.is_freed() && !of_kept.is_freed());
    drop((again, of_kept));
    exporter.exported.return_all();
}

#[test]
fn ticket_that_is_out_or_does_not_exist_is_refused() {
    let (mut exporter, importer) = table_in_process().unwrap();
    let buffer = buffer();
    let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    let _receipt = importer.imported.receipt(ticket, Arc::new(())).unwrap();
    for (slot, generation) in [
        (ticket.slot, 1),
        (ticket.slot, 2),
        (5, 0),
        (SLOTS as u32, 1),
    ] {
        let bad = Ticket { slot, generation };
        let error = importer.imported.receipt(bad, Arc::new(())).unwrap_err();
        assert_eq!(error, BadTicket { slot, generation });
    }
}

#[test]
fn peer_that_returns_nothing_holds_a_bounded_number_of_leases() {
    let (mut exporter, _importer) = table_in_process().unwrap();
    let buffer = buffer();
    for _ in 0..SLOTS {
        exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    }
    let refused = exporter
        .exported
        .issue(buffer.lease().unwrap())
        .unwrap_err();
    assert_eq!(refused.bytes(), buffer.len());
    assert_eq!(
        (exporter.exported.sweep(), exporter.exported.outstanding()),
        (0, SLOTS)
    );
    exporter.exported.return_all();
    assert_eq!(exporter.exported.outstanding(), 0);
    // The slots are free again.
    exporter.exported.issue(refused).unwrap();
}

#[test]
fn word_of_another_generation_is_ignored() {
    let (mut exporter, fd) = create_table().unwrap();
    let file = File::from(fd);
    let buffer = buffer();
    let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    for lie in [0, 2, 3, u32::MAX - 1] {
        write_word(&file, ticket.slot, lie);
        assert_eq!(exporter.exported.sweep(), 0);
    }
    // This one returns the lease, whichever process stores it.
    write_word(&file, ticket.slot, ticket.generation);
    assert_eq!(exporter.exported.sweep(), 1);
    // It does not return the next lease of the slot.
    exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    assert_eq!(exporter.exported.sweep(), 0);
}

#[test]
fn generation_wraps_past_the_two_reserved_values() {
    let (mut exporter, importer) = table_in_process().unwrap();
    let buffer = buffer();
    let export = |exporter: &mut CompletionTable| {
        let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
        drop(importer.imported.receipt(ticket, Arc::new(())).unwrap());
        assert_eq!(exporter.exported.sweep(), 1);
        ticket
    };
    export(&mut exporter);
    exporter.exported.set_generation(0, u32::MAX - 2);
    let generations = [(); 3].map(|()| export(&mut exporter).generation);
    assert_eq!(generations, [u32::MAX - 1, 1, 2]);
}

#[test]
fn leases_that_were_not_imported_are_returned_when_the_importer_closes() {
    let (mut exporter, importer) = table_in_process().unwrap();
    let buffer = buffer();
    let export =
        |exporter: &mut CompletionTable| exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    let held = importer
        .imported
        .receipt(export(&mut exporter), Arc::new(()))
        .unwrap();
    export(&mut exporter);
    assert_eq!(exporter.exported.sweep(), 0);
    importer.imported.close();
    assert_eq!(
        (exporter.exported.sweep(), exporter.exported.outstanding()),
        (1, 1)
    );
    // Leases that were on their way then, in a slot used before and in a new one.
    export(&mut exporter);
    export(&mut exporter);
    assert_eq!(
        (exporter.exported.sweep(), exporter.exported.outstanding()),
        (2, 1)
    );
    drop(held);
    assert_eq!(exporter.exported.sweep(), 1);
    export(&mut exporter);
    assert_eq!(exporter.exported.sweep(), 1);
}

#[test]
fn table_dropped_with_leases_out_abandons_them() {
    let arena = Arena::new(ArenaConfig::default());
    let first = arena.take(100_000).unwrap();
    let second = arena.take(100_000).unwrap();
    let (mut exporter, importer) = table_in_process().unwrap();
    let ticket = exporter.exported.issue(first.lease().unwrap()).unwrap();
    drop(exporter);
    drop(first);
    let abandoned = arena.statistics().abandoned_bytes;
    assert!(abandoned >= 100_000);
    // Too late.
    drop(importer.imported.receipt(ticket, Arc::new(())).unwrap());
    assert_eq!(arena.statistics().abandoned_bytes, abandoned);
    drop(second);
    assert_eq!(arena.statistics().mapped_bytes, 0);
}

#[test]
fn slot_of_an_abandoned_lease_is_not_used_again() {
    let (mut exporter, importer) = table_in_process().unwrap();
    let buffer = buffer();
    let first = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    let receipt = importer.imported.receipt(first, Arc::new(())).unwrap();
    exporter.exported.abandon_all();
    assert_eq!(exporter.exported.outstanding(), 0);
    let second = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    assert_ne!(first.slot, second.slot);
    drop(receipt);
    assert_eq!(exporter.exported.sweep(), 0);
}

#[test]
fn receipt_returns_its_lease_before_it_drops_what_it_keeps() {
    struct Keep(
        std::sync::Mutex<ExportedLeases>,
        std::sync::mpsc::Sender<usize>,
    );
    impl super::Keep for Keep {}

    impl Drop for Keep {
        fn drop(&mut self) {
            self.1.send(self.0.lock().unwrap().sweep()).unwrap();
        }
    }
    let (mut exporter, importer) = table_in_process().unwrap();
    let buffer = buffer();
    let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let keep = Arc::new(Keep(exporter.exported.into(), send));
    let receipt = importer.imported.receipt(ticket, keep).unwrap();
    assert!(receive.try_recv().is_err());
    drop(receipt);
    assert_eq!(receive.recv().unwrap(), 1);
}

#[test]
fn threads_return_leases_while_the_exporter_sweeps() {
    let (mut exporter, fd) = create_table().unwrap();
    let importer = attach_table(fd).unwrap();
    let buffer = buffer();
    let (send, receive) = std::sync::mpsc::sync_channel::<Receipt>(100);
    let receive = std::sync::Mutex::new(receive);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| while receive.lock().unwrap().recv().is_ok() {});
        }
        let mut back = 0;
        for _ in 0..20_000 {
            let ticket = exporter.exported.issue(buffer.lease().unwrap()).unwrap();
            send.send(importer.imported.receipt(ticket, Arc::new(())).unwrap())
                .unwrap();
            back += exporter.exported.sweep();
        }
        drop(send);
        while back < 20_000 {
            back += exporter.exported.sweep();
            std::thread::yield_now();
        }
    });
    assert_eq!(exporter.exported.outstanding(), 0);
}

#[test]
fn memory_that_is_not_a_completion_table_is_refused() {
    let (_exporter, fd) = create_table().unwrap();
    let mut honest = vec![0; 12_288];
    File::from(fd).read_exact_at(&mut honest, 0).unwrap();
    let forged = |bytes: u64, change: &dyn Fn(&File)| {
        let fd = crate::memfd::create("forged", bytes, |_| Ok(())).unwrap();
        let file = File::from(fd);
        file.write_all_at(&honest[..honest.len().min(bytes as usize)], 0)
            .unwrap();
        change(&file);
        attach_table(file.into()).map(drop)
    };
    forged(12_288, &|_| ()).unwrap();
    for bytes in [0, 16, 12_287, 12_289, 1 << 40] {
        let error = forged(bytes, &|_| ()).unwrap_err();
        assert!(matches!(error, TableError::Size { file_bytes, .. } if file_bytes == bytes));
    }
    for at in [0, 8, 12] {
        let error = forged(12_288, &|file| file.write_all_at(b"?", at).unwrap()).unwrap_err();
        assert!(matches!(error, TableError::Header { .. }), "{error}");
    }
    let (pipe, _writing) = std::io::pipe().unwrap();
    let error = attach_table(pipe.into()).unwrap_err();
    assert!(matches!(error, TableError::Seal(_)), "{error}");
}

/// Stores a word of the creator's leases as a peer may
fn write_word(file: &File, slot: u32, word: u32) {
    file.write_all_at(&word.to_ne_bytes(), 4096 + 4 * u64::from(slot))
        .unwrap();
}

fn buffer() -> ArenaBuf {
    Arena::new(ArenaConfig::default()).take(100_000).unwrap()
}
