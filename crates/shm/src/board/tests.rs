#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use super::*;
use crate::arena::{Arena, ArenaBuf, ArenaConfig};
use crate::leased::{Leased, read_leased};

#[test]
fn lease_is_back_once_its_receipt_is_dropped() {
    let (mut giver, fd) = create_board().unwrap();
    let taker = attach_board(fd).unwrap();
    let buffer = buffer();
    for generation in 1..4 {
        let ticket = giver.given.issue(buffer.lease().unwrap()).unwrap();
        assert_eq!(ticket.generation, generation);
        assert_eq!(Ticket::from(u64::from(ticket)), ticket);
        let receipt = taker.taken.receipt(ticket, Arc::new(())).unwrap();
        assert_eq!(giver.given.sweep(), 0);
        assert_eq!(giver.given.outstanding_bytes(), buffer.len() as u64);
        drop(receipt);
        assert_eq!(giver.given.sweep(), 1);
        assert_eq!(giver.given.outstanding(), 0);
    }
}

#[test]
fn mapped_lease_shows_the_bytes_and_keeps_its_own_changes() {
    let (mut giver, mut taker) = board_in_process();
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
    let ticket = giver.given.issue(lease).unwrap();
    let receipt = taker.taken.receipt(ticket, Arc::new(())).unwrap();
    let mut leased = Leased::map(fd, offset, buffer.len(), true, receipt).unwrap();
    assert_eq!(*leased, *buffer);
    leased.fill(6);
    assert!(buffer.iter().all(|byte| *byte == 5));
    drop(leased);
    assert_eq!(giver.given.sweep(), 1);
    taker.given.return_all();
}

#[test]
fn ticket_that_is_out_or_does_not_exist_is_refused() {
    let (mut giver, taker) = board_in_process();
    let buffer = buffer();
    let ticket = giver.given.issue(buffer.lease().unwrap()).unwrap();
    let _receipt = taker.taken.receipt(ticket, Arc::new(())).unwrap();
    for (slot, generation) in [
        (ticket.slot, 1),
        (ticket.slot, 2),
        (5, 0),
        (SLOTS as u32, 1),
    ] {
        let bad = Ticket { slot, generation };
        let error = taker.taken.receipt(bad, Arc::new(())).unwrap_err();
        assert_eq!(error, BadTicket { slot, generation });
    }
}

fn buffer() -> ArenaBuf {
    Arena::new(ArenaConfig::default()).take(100_000).unwrap()
}
