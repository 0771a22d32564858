//! Encryption whose calls of the system other threads make.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use backhaul::fuzzing::{tls_buffers_helped, tls_with_short_keys};
use backhaul::{
    CloseReason, Config, Context, Endpoint, LaneKind, Tag, TagMask, Tls, TlsHelpers, TlsOptions,
    TlsVersion,
};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::tls::Authority;
use backhaul_testkit::watchdog::Watchdog;
use backhaul_testkit::{Finish, assert_matches, wait_until};

#[test]
fn what_helpers_write_arrives_as_it_was_sent_whatever_is_spoken() {
    let _watchdog = Watchdog::start("what_helpers_write");
    let authority = Authority::new("authority");
    let mut options = authority.options(&authority.sign());
    for (version, ciphers) in [
        (TlsVersion::V1_3, None),
        (TlsVersion::V1_3, Some("TLS_CHACHA20_POLY1305_SHA256")),
        (TlsVersion::V1_2, None),
    ] {
        options.max_version = version;
        options.ciphers = ciphers.map(str::to_owned);
        for helpers in [TlsHelpers::Forced, TlsHelpers::Always] {
            let (near, far, _contexts) = pair(&Tls::new(&options).unwrap(), helpers);
            let before = tls_buffers_helped();
            exchange(&near, &far);
            // When a helper comes, and whether in time, is for the system to say.
            while helpers == TlsHelpers::Forced && tls_buffers_helped() == before {
                exchange(&near, &far);
            }
        }
    }
}

#[test]
fn keys_are_renewed_between_the_records_that_helpers_write() {
    let _watchdog = Watchdog::start("keys_and_helpers");
    let authority = Authority::new("authority");
    let mut options: TlsOptions = authority.options(&authority.sign());
    let tls = tls_with_short_keys(&options, 100).unwrap();
    let (near, far, _contexts) = pair(&tls, TlsHelpers::Forced);
    for _ in 0..4 {
        exchange(&near, &far);
    }

    options.max_version = TlsVersion::V1_2;
    let tls = tls_with_short_keys(&options, 100).unwrap();
    let (near, far, _contexts) = pair(&tls, TlsHelpers::Forced);
    let posted = far.recv_message(Tag(1), TagMask::FULL);
    let error = near.send(Tag(1), long()).done().unwrap_err();
    assert!(error.to_string().contains("keys are used up"), "{error}");
    posted.done().unwrap_err();
}

#[test]
fn a_peer_that_ends_in_the_middle_ends_what_helpers_are_at() {
    let _watchdog = Watchdog::start("ends_in_the_middle");
    let authority = Authority::new("authority");
    for aborts_sender in [false, true] {
        for _ in 0..8 {
            let (near, far, _contexts) = pair(&authority.side(), TlsHelpers::Forced);
            let before = tls_buffers_helped();
            let posted: Vec<_> = (0..4)
                .map(|_| far.recv_message(Tag(1), TagMask::FULL))
                .collect();
            let sent: Vec<_> = (0..4).map(|_| near.send(Tag(1), long())).collect();
            wait_until(|| tls_buffers_helped() != before || posted[3].is_done());
            let (aborts, stays) = if aborts_sender {
                (&near, &far)
            } else {
                (&far, &near)
            };
            aborts.abort();
            let reason = stays.watch_close().done().unwrap();
            assert_matches!(reason, CloseReason::PeerGone { .. });
            // Each is over: with what came before the end, or an error.
            for posted in posted {
                let _ = posted.done();
            }
            for sent in sent {
                let _ = sent.done();
            }
        }
    }
}

#[test]
fn a_receive_that_is_given_up_in_the_middle_keeps_nothing_from_what_follows() {
    let _watchdog = Watchdog::start("given_up_in_the_middle");
    let authority = Authority::new("authority");
    let (near, far, _contexts) = pair(&authority.side(), TlsHelpers::Forced);
    for _ in 0..8 {
        let before = tls_buffers_helped();
        let posted = far.recv_message(Tag(1), TagMask::FULL);
        let sent = near.send(Tag(1), long());
        wait_until(|| tls_buffers_helped() != before || posted.is_done());
        drop(posted);
        let short = near.send(Tag(2), b"short".to_vec());
        let heard = far.recv_message(Tag(2), TagMask::FULL).done().unwrap();
        assert_eq!(heard.segments[0][..], *b"short");
        short.done().unwrap();
        drop(far.recv_message(Tag(1), TagMask::FULL));
        drop(sent);
    }
    far.abort();
    near.watch_close().done().unwrap();
}

fn pair(tls: &Tls, helpers: TlsHelpers) -> (Endpoint, Endpoint, [Context; 2]) {
    let contexts = [(); 2].map(|()| {
        let mut config = Config::default();
        config.lanes = vec![LaneKind::Tls];
        config.tls = Some(tls.clone());
        config.tls_helpers = helpers;
        Context::new(config).unwrap()
    });
    let listener = contexts[1].listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let near = contexts[0].connect(&listener.local_address().to_string());
    (near.done().unwrap(), accept.done().unwrap(), contexts)
}

/// Long messages both ways at once, with short ones between
fn exchange(near: &Endpoint, far: &Endpoint) {
    let (long, ways) = (long(), [(near, far), (far, near)]);
    let under_way = ways.map(|(from, to)| {
        let posted = [Tag(1), Tag(2)].map(|tag| to.recv_message(tag, TagMask::FULL));
        let sent = [
            from.send(Tag(1), long.clone()),
            from.send(Tag(2), b"short".to_vec()),
        ];
        (posted, sent)
    });
    for (posted, sent) in under_way {
        let [first, second] = posted.map(|posted| posted.done().unwrap());
        assert!(first.segments[0][..] == long);
        assert_eq!(second.segments[0][..], *b"short");
        for sent in sent {
            sent.done().unwrap();
        }
    }
}

/// Many times what is made at once, and no whole number of records
fn long() -> Vec<u8> {
    (0..9_000_001_u32).map(|at| (at % 251) as u8).collect()
}
