//! Descriptors of memory that a peer passes: of rings, of a completion table, of leases, of doorbells.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use backhaul_shm::arena::{Arena, ArenaBuf, ArenaConfig};
use backhaul_shm::completion::{Ticket, attach_table, table_in_process};
use backhaul_shm::doorbell::Doorbell;
use backhaul_shm::leased::{Leased, read_leased};
use backhaul_shm::{channel, completion};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::pwrite;

use crate::Input;

/// An invalid segment is refused, and an accepted one can be used
pub(super) fn segments(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => {
            if let Ok(mut ends) = channel::attach(some_file(&mut input)) {
                let mut buffer = [0; 300];
                let mut buffers = [IoSliceMut::new(&mut buffer)];
                let _ = ends.consumer.read_vectored(&mut buffers);
                let _ = ends.producer.write(&[1; 300]);
            }
        }
        1 => {
            if let Ok(table) = attach_table(some_file(&mut input)) {
                let ticket = Ticket::from(input.number());
                drop(table.imported.receipt(ticket, Arc::new(())));
                table.imported.close();
            }
        }
        2 => lease(&mut input),
        _ => {
            if let Ok(doorbell) = Doorbell::from_peer(some_file(&mut input)) {
                doorbell.notify();
                doorbell.clear();
            }
        }
    }
}

fn lease(input: &mut Input<'_>) {
    let file = some_file(input);
    let offset = input.number();
    let bytes = usize::try_from(input.number() % (1 << 17)).unwrap();
    let mut target = vec![0; bytes];
    let is_read = read_leased(file.as_fd(), offset, &mut target).is_ok();
    let (_ours, theirs) = table_in_process().expect("three pages");
    let ticket = Ticket {
        slot: 0,
        generation: 1,
    };
    let receipt = theirs.imported.receipt(ticket, Arc::new(())).unwrap();
    match Leased::map(file, offset, bytes, input.flag(), receipt) {
        Ok(leased) => {
            assert!(is_read, "what can be mapped can be read");
            assert_eq!(leased[..], target[..]);
        }
        Err(error) => {
            assert!(!is_read || bytes == 0, "{error}");
        }
    }
}

/// A file as a peer might pass it: of some size, with some seals, and perhaps a header
pub(super) fn some_file(input: &mut Input<'_>) -> OwnedFd {
    if input.below(16) == 0 {
        return Doorbell::new()
            .and_then(|doorbell| doorbell.as_fd().try_clone_to_owned())
            .expect("descriptors");
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("fuzz", flags).expect("a descriptor");
    let bytes = match input.below(6) {
        0 => 12_288,
        1 => 4096 + (2 << (input.byte() % 18)),
        2 => input.number() % (1 << 20),
        _ => 4096 + 2 * 4096,
    };
    ftruncate(&file, bytes).expect("a size");
    let header: Vec<u8> = match input.below(4) {
        0 => input.take(24).to_vec(),
        1 => [&b"bkhl-brd"[..], &[1, 0, 0, 0, 0, 4, 0, 0]].concat(),
        _ => {
            let capacity = input.choose(&[4096, 8192, input.clone().word()]);
            [
                &b"bkhl-shm"[..],
                &[1, 0, 0, 0, 0, 0, 0, 0],
                &capacity.to_le_bytes(),
            ]
            .concat()
        }
    };
    if !header.is_empty() && bytes >= header.len() as u64 {
        pwrite(&file, &header, 0).expect("within the file");
        if input.below(4) == 0 {
            let at = usize::from(input.byte()) % header.len();
            pwrite(&file, &[input.byte()], at as u64).expect("within the file");
        }
    }
    let required = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let seals = match input.below(8) {
        0 => SealFlags::from_bits_truncate(input.byte().into()) & required,
        1 => required | SealFlags::FUTURE_WRITE,
        _ => required,
    };
    fcntl_add_seals(&file, seals).expect("seals that there are");
    file
}

/// A block that leases are taken of; none where the system has no memory for an arena
fn block() -> Option<&'static ArenaBuf> {
    static BLOCK: OnceLock<Option<ArenaBuf>> = OnceLock::new();
    let block = BLOCK.get_or_init(|| Arena::new(ArenaConfig::default()).take(1 << 16));
    block.as_ref()
}

/// The completion table, with a peer that writes anything into its words
pub(super) fn completion(data: &[u8]) {
    let mut input = Input::new(data);
    let (mut ours, fd) = completion::create_table().expect("three pages");
    let copy = fd.as_fd().try_clone_to_owned().unwrap();
    let theirs = attach_table(fd).expect("as it was made");
    let block = block();
    let mut out: Vec<Ticket> = Vec::new();
    let mut receipts = Vec::new();
    while !input.is_empty() {
        match input.below(6) {
            0 | 1 => {
                if let Some(lease) = block.and_then(ArenaBuf::lease)
                    && let Ok(ticket) = ours.exported.issue(lease)
                {
                    assert!(!out.contains(&ticket), "a ticket is out once");
                    out.push(ticket);
                }
            }
            2 => {
                let ticket = match input.flag() {
                    true => Ticket::from(input.number()),
                    false if out.is_empty() => continue,
                    false => out[input.below(out.len().min(256))],
                };
                let slot_is_taken = receipts
                    .iter()
                    .any(|(held, _): &(Ticket, _)| held.slot == ticket.slot);
                let receipt = theirs.imported.receipt(ticket, Arc::new(()));
                assert!(receipt.is_err() || !slot_is_taken);
                receipts.extend(receipt.ok().map(|receipt| (ticket, receipt)));
            }
            3 => {
                if !receipts.is_empty() {
                    let index = input.below(receipts.len().min(256));
                    drop(receipts.swap_remove(index));
                }
            }
            4 => {
                let value = input.number() as u32;
                let slot = u64::from(input.byte());
                pwrite(&copy, &value.to_le_bytes(), 4096 + 4 * slot).expect("within the table");
            }
            _ => {
                let returned = ours.exported.sweep();
                assert!(returned <= out.len());
                assert_eq!(ours.exported.outstanding(), out.len() - returned);
                if returned > 0 {
                    // Which of them are back only the table knows: begin anew.
                    ours.exported.return_all();
                    out.clear();
                }
            }
        }
        assert!(ours.exported.outstanding() <= completion::SLOTS);
    }
    ours.exported.return_all();
    assert_eq!(ours.exported.outstanding(), 0);
}
