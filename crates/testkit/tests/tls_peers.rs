//! Encryption: who is let in and who is not, and what is said of it.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use backhaul::fuzzing::tls_with_short_keys;
use backhaul::{
    CloseReason, Config, ConfigError, ConnectError, Context, Endpoint, HandshakeError, LaneKind,
    ListenError, Pem, Tag, TagMask, Tls, TlsError, TlsFailure, TlsOptions, TlsVersion, Trust,
};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::raw::{RawPeer, hello};
use backhaul_testkit::tls::{Authority, Identity};
use backhaul_testkit::watchdog::Watchdog;
use backhaul_testkit::{Finish, assert_matches, wait_until};
use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, date_time_ymd};

#[test]
fn peers_of_one_authority_meet_and_nothing_is_in_clear_text() {
    let _watchdog = Watchdog::start("peers_of_one_authority");
    let authority = Authority::new("authority");
    let far = context(&LaneKind::ALL, Some(&authority.side()));
    for (lanes, expected) in [
        (vec![LaneKind::Tcp], LaneKind::Tls),
        (vec![LaneKind::Tls], LaneKind::Tls),
        (vec![], LaneKind::Tls),
        (LaneKind::DEFAULT.to_vec(), LaneKind::Inproc),
        (vec![LaneKind::Shm, LaneKind::Tcp], LaneKind::Shm),
        (vec![LaneKind::Ucx, LaneKind::Tcp], LaneKind::Tls),
    ] {
        let near = context(&lanes, Some(&authority.side()));
        let (near_end, far_end) = meet(&near, &far).unwrap();
        assert_eq!(near_end.lane(), expected, "{lanes:?}");
        let info = near_end.info();
        assert!(info.reason.contains("clear text"), "{}", info.reason);
        assert_eq!(info.trust, Trust::Certificate);
        let tls = info.tls.unwrap();
        assert_eq!(tls.version, TlsVersion::V1_3);
        assert_eq!(
            (tls.cipher, tls.cipher_bits),
            ("TLS_AES_256_GCM_SHA384", 256)
        );
        assert!(tls.peer_certificate.unwrap().len() > 100);
        assert!(far_end.info().tls.unwrap().peer_certificate.is_some());
        exchange(&near_end, &far_end);
    }
}

#[test]
fn a_side_whose_certificate_is_of_another_authority_is_refused_by_both() {
    let _watchdog = Watchdog::start("another_authority");
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let far = encrypted(&ours.side());
    // The listener's certificate says nothing to it.
    let error = meet(&encrypted(&theirs.side()), &far).unwrap_err();
    assert_certificate_refused(error, "no certificate authority");
    // It believes the listener, which does not believe it.
    let mut options = theirs.options(&theirs.sign());
    options.authorities = Pem::Text(ours.pem.clone());
    let error = meet(&encrypted(&Tls::new(&options).unwrap()), &far).unwrap_err();
    assert_refused_by_peer(error, "has signed our certificate");
    // Another authority of the same name proves nothing either.
    let impostor = Authority::new("ours");
    let mut options = impostor.options(&impostor.sign_version_1());
    options.authorities = Pem::Text(ours.pem.clone());
    let error = meet(&encrypted(&Tls::new(&options).unwrap()), &far).unwrap_err();
    assert_matches!(
        error,
        ConnectError::Tls {
            source: TlsFailure::Refused { .. },
            ..
        }
    );
    meet(&encrypted(&ours.side()), &far).unwrap();
}

#[test]
fn who_shows_no_certificate_is_refused() {
    let _watchdog = Watchdog::start("no_certificate");
    let authority = Authority::new("authority");
    let far = encrypted(&authority.side());
    for max_version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let mut options = TlsOptions::new(Pem::Text(authority.pem.clone()));
        options.max_version = max_version;
        let bare = Tls::new(&options).unwrap();
        let near = context(&LaneKind::DEFAULT, None);
        let listener = far.listen(LOOPBACK).unwrap();
        let address = listener.local_address().to_string();
        let error = near.connect_tls(&address, None, &bare).done().unwrap_err();
        assert_matches!(
            error,
            ConnectError::Tls {
                source: TlsFailure::Refused { .. },
                ..
            }
        );
        wait_until(|| listener.statistics().rejected == 1);
        let reason = listener.statistics().last_rejection.unwrap();
        assert!(reason.contains("shown none"), "{reason}");
        // Nor can it listen.
        let error = near.listen_tls(LOOPBACK, &bare).unwrap_err();
        let is_about = |error: &ListenError| {
            matches!(
                error,
                ListenError::Config(ConfigError::Tls(TlsError::NoCertificate))
            )
        };
        assert!(is_about(&error), "{error:?}");
    }
}

#[test]
fn certificates_out_of_their_time_are_refused_where_they_are_given() {
    let authority = Authority::new("authority");
    for (not_before, not_after, why) in [
        (2001, 2002, "expired on 2002-01-01 00:00:00 UTC"),
        (2998, 2999, "not valid before 2998-01-01"),
    ] {
        let stale = authority.sign_with(|params| {
            params.not_before = date_time_ymd(not_before, 1, 1);
            params.not_after = date_time_ymd(not_after, 1, 1);
        });
        let error = Tls::new(&authority.options(&stale))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_certificate_for_servers_alone_proves_no_client() {
    let _watchdog = Watchdog::start("for_servers");
    let authority = Authority::new("authority");
    let good = authority.side();
    let of_servers = authority.sign_with(|params| {
        params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
    });
    let of_servers = Tls::new(&authority.options(&of_servers)).unwrap();
    let error = meet(&encrypted(&of_servers), &encrypted(&good)).unwrap_err();
    assert_matches!(
        error,
        ConnectError::Tls {
            source: TlsFailure::Refused { .. },
            ..
        }
    );
    meet(&encrypted(&good), &encrypted(&of_servers)).unwrap();
}

#[test]
fn a_self_signed_certificate_that_all_share_is_believed() {
    let _watchdog = Watchdog::start("self_signed");
    for is_ca in [true, false] {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let shared = Identity {
            certificate: params.self_signed(&key).unwrap().pem(),
            key: key.serialize_pem(),
        };
        let mut options = TlsOptions::new(Pem::Text(shared.certificate.clone()));
        // The key with the certificate, as one text.
        options.certificate = Some(Pem::Text(format!("{}{}", shared.certificate, shared.key)));
        let side = Tls::new(&options).unwrap();
        let (near, far) = meet(&encrypted(&side), &encrypted(&side)).unwrap();
        exchange(&near, &far);
        // A peer without its key cannot show it.
        let other = Authority::new("other");
        let mut options = other.options(&other.sign());
        options.authorities = Pem::Text(shared.certificate);
        let other = encrypted(&Tls::new(&options).unwrap());
        meet(&other, &encrypted(&side)).unwrap_err();
        meet(&encrypted(&side), &other).unwrap_err();
    }
}

#[test]
fn certificates_of_x509_version_1_are_believed_if_an_authority_has_signed_them() {
    let _watchdog = Watchdog::start("version_1");
    let authority = Authority::new("authority");
    for max_version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let mut options = authority.options(&authority.sign_version_1());
        options.max_version = max_version;
        let old = encrypted(&Tls::new(&options).unwrap());
        let (near, far) = meet(&old, &encrypted(&authority.side())).unwrap();
        exchange(&near, &far);
        meet(&encrypted(&authority.side()), &old).unwrap();
    }
}

#[test]
fn versions_and_ciphers_are_kept_to() {
    let _watchdog = Watchdog::start("versions_and_ciphers");
    let authority = Authority::new("authority");
    let mut options = authority.options(&authority.sign());
    options.max_version = TlsVersion::V1_2;
    options.ciphers = Some("ECDHE-ECDSA-AES128-GCM-SHA256".to_owned());
    let old = encrypted(&Tls::new(&options).unwrap());
    let (near, far) = meet(&old, &encrypted(&authority.side())).unwrap();
    for end in [&near, &far] {
        let tls = end.info().tls.unwrap();
        assert_eq!(tls.version, TlsVersion::V1_2);
        assert_eq!(
            (tls.cipher, tls.cipher_bits),
            ("ECDHE-ECDSA-AES128-GCM-SHA256", 128)
        );
    }
    exchange(&near, &far);
    let mut options = authority.options(&authority.sign());
    options.min_version = TlsVersion::V1_3;
    let new = encrypted(&Tls::new(&options).unwrap());
    let error = meet(&old, &new).unwrap_err();
    assert_refused_by_peer(error, "no version of TLS");
    options.max_version = TlsVersion::V1_2;
    assert_matches!(Tls::new(&options).unwrap_err(), TlsError::Versions { .. });
}

#[test]
fn what_cannot_be_used_is_named_with_its_file_and_why() {
    let authority = Authority::new("authority");
    let (good, other) = (authority.sign(), authority.sign());
    let mut cases: Vec<(TlsOptions, &str)> = Vec::new();
    let mut case = |change: &dyn Fn(&mut TlsOptions), expected| {
        let mut options = authority.options(&good);
        change(&mut options);
        cases.push((options, expected));
    };
    let text = |text: &str| Pem::Text(text.to_owned());
    let nowhere = || Pem::File(PathBuf::from("/nowhere/ca.pem"));
    case(
        &|options| options.authorities = nowhere(),
        "/nowhere/ca.pem: No such file",
    );
    case(
        &|options| options.certificate = Some(nowhere()),
        "certificate from /nowhere",
    );
    case(
        &|options| options.key = Some(nowhere()),
        "private key from /nowhere",
    );
    case(
        &|options| options.authorities = text("nonsense\n"),
        "no -----BEGIN CERTIFICATE",
    );
    case(
        &|options| options.certificate = Some(text(&good.key)),
        "no -----BEGIN CERTIFICATE",
    );
    case(
        &|options| options.key = Some(text(&good.certificate)),
        "no private key in it",
    );
    case(
        &|options| options.key = Some(text(&other.key)),
        "is not that of the certificate",
    );
    case(
        &|options| options.ciphers = Some("HIGH".to_owned()),
        "\"HIGH\"",
    );
    let torn = &good.certificate[..good.certificate.len() / 2];
    case(
        &|options| options.certificate = Some(text(torn)),
        "it is no PEM",
    );
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    case(
        &|options| options.certificate = Some(text(empty)),
        "no X.509 certificate",
    );
    case(
        &|options| options.authorities = text(empty),
        "authorities in the text given",
    );
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    case(
        &|options| options.key = Some(text(locked)),
        "it is encrypted",
    );
    for (options, expected) in cases {
        let error = Tls::new(&options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} has no {expected:?}");
        assert!(!error.contains("PRIVATE KEY-----\nM"), "{error}");
    }
    assert_matches!(
        "1.1".parse::<TlsVersion>(),
        Err(TlsError::UnknownVersion { .. })
    );
}

#[test]
fn a_side_without_encryption_and_one_with_it_part_with_a_reason() {
    let _watchdog = Watchdog::start("a_side_without");
    let authority = Authority::new("authority");
    let (plain, encrypted) = (
        context(&LaneKind::DEFAULT, None),
        encrypted(&authority.side()),
    );
    let listener = encrypted.listen(LOOPBACK).unwrap();
    let error = plain.connect(&listener.local_address().to_string());
    let error = error.done().unwrap_err();
    assert_matches!(
        error,
        ConnectError::Handshake {
            source: HandshakeError::SpeaksTls,
            ..
        }
    );
    wait_until(|| listener.statistics().rejected == 1);
    let reason = listener.statistics().last_rejection.unwrap();
    assert!(
        reason.contains("a handshake of ours in clear text"),
        "{reason}"
    );

    let listener = plain.listen(LOOPBACK).unwrap();
    let error = encrypted.connect(&listener.local_address().to_string());
    let error = error.done().unwrap_err();
    assert_matches!(
        error,
        ConnectError::Tls {
            source: TlsFailure::Ended,
            ..
        }
    );
    wait_until(|| listener.statistics().rejected == 1);
    let reason = listener.statistics().last_rejection.unwrap();
    assert!(reason.contains("speaks TLS"), "{reason}");
}

#[test]
fn strangers_are_turned_away_and_hear_nothing() {
    let _watchdog = Watchdog::start("strangers");
    let authority = Authority::new("authority");
    let host = encrypted(&authority.side());
    let listener = host.listen(LOOPBACK).unwrap();
    for (stranger, reason) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "GET / HTTP"),
        (&[0; 100], "\\x00"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "began with"),
    ] {
        let mut peer = RawPeer::connect(listener.local_address());
        let before = listener.statistics().rejected;
        peer.say(stranger);
        assert_eq!(peer.hear_out(), 0);
        wait_until(|| listener.statistics().rejected == before + 1);
        let last = listener.statistics().last_rejection.unwrap();
        assert!(last.contains(reason), "{last}");
    }
    // Bytes that begin as TLS get no more than an alert.
    for garbage in [
        &b"\x16\x03\x01\xff\xff"[..],
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x03\x00\x04\x02\x00\x00\x00",
    ] {
        let mut peer = RawPeer::connect(listener.local_address());
        peer.say(garbage);
        peer.finish();
        assert!(peer.hear_out() <= 7);
    }
    assert_eq!(listener.statistics().accepted, 0);
}

#[test]
fn who_speaks_slowly_or_not_at_all_is_turned_away_in_time() {
    let _watchdog = Watchdog::start("slowly");
    let authority = Authority::new("authority");
    let mut config = Config::default();
    config.tls = Some(authority.side());
    config.handshake_timeout = Duration::from_millis(100);
    let host = Context::new(config).unwrap();
    let listener = host.listen(LOOPBACK).unwrap();
    for beginning in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"] {
        let before = listener.statistics().rejected;
        let mut peer = RawPeer::connect(listener.local_address());
        peer.say(beginning);
        peer.hear_out();
        wait_until(|| listener.statistics().rejected == before + 1);
        let last = listener.statistics().last_rejection.unwrap();
        assert!(last.contains("not finished"), "{last}");
    }
    // And who is called: it takes the connection, and says nothing.
    let silent = TcpListener::bind(LOOPBACK).unwrap();
    let error = host.connect(&silent.local_addr().unwrap().to_string());
    let error = error.done().unwrap_err();
    let is_late = |error: &ConnectError| matches!(error, ConnectError::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut);
    assert!(is_late(&error), "{error:?}");
}

#[test]
fn lanes_that_exclude_encryption_are_refused_where_they_are_given() {
    let authority = Authority::new("authority");
    let side = authority.side();
    let near = context(&LaneKind::DEFAULT, None);
    let error = near.connect_tls("127.0.0.1:1", Some(&[LaneKind::Ucx]), &side);
    let lane = LaneKind::Ucx;
    assert_matches!(error.done().unwrap_err(), ConnectError::Config(ConfigError::ClearText { lane: l }) if l == lane);
    let error = near.connect_over("127.0.0.1:1", &[LaneKind::Tls]);
    assert_matches!(
        error.done().unwrap_err(),
        ConnectError::Config(ConfigError::NoCertificates)
    );
    let mut config = Config::default();
    config.tls = Some(Tls::new(&TlsOptions::new(Pem::Text(authority.pem))).unwrap());
    assert_matches!(
        config.validate().unwrap_err(),
        ConfigError::Tls(TlsError::NoCertificate)
    );
}

/// Between the two sides, what passes is changed or cut off
#[test]
fn who_is_between_cannot_change_or_cut_off_anything_unseen() {
    let _watchdog = Watchdog::start("between");
    let authority = Authority::new("authority");
    let (near, far) = (encrypted(&authority.side()), encrypted(&authority.side()));
    for is_changed in [true, false] {
        let listener = far.listen(LOOPBACK).unwrap();
        let between = TcpListener::bind(LOOPBACK).unwrap();
        let accept = listener.accept();
        let request = near.connect(&between.local_addr().unwrap().to_string());
        let (client, _) = between.accept().unwrap();
        let server = TcpStream::connect(listener.local_address()).unwrap();
        let (mut back_from, mut back_to) =
            (server.try_clone().unwrap(), client.try_clone().unwrap());
        let back = std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let there = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            let mut seen = Vec::new();
            loop {
                let bytes = from.read(&mut buffer).unwrap();
                if bytes == 0 || told.try_recv().is_ok() {
                    if is_changed && bytes > 0 {
                        buffer[bytes / 2] ^= 1;
                        to.write_all(&buffer[..bytes]).unwrap();
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                    return seen;
                }
                seen.extend_from_slice(&buffer[..bytes]);
                to.write_all(&buffer[..bytes]).unwrap();
            }
        });
        let (near_end, far_end) = (request.done().unwrap(), accept.done().unwrap());
        exchange(&near_end, &far_end);
        let posted = far_end.recv_message(Tag(1), TagMask::FULL);
        tell.send(()).unwrap();
        near_end.send(Tag(1), &b"never seen"[..]).detach();
        assert!(posted.done().is_err());
        let reason = far_end.watch_close().done().unwrap();
        assert_matches!(reason, CloseReason::PeerGone { .. });
        if is_changed {
            let text = reason.to_string();
            assert!(text.contains("encryption failed"), "{text}");
        }
        let seen = there.join().unwrap();
        assert!(
            !seen
                .windows(8)
                .any(|window| window == b"backhaul" || window == b"a secret")
        );
        let _ = back.join();
    }
}

#[test]
fn plain_bytes_behind_the_handshake_end_the_connection() {
    let authority = Authority::new("authority");
    let host = encrypted(&authority.side());
    let listener = host.listen(LOOPBACK).unwrap();
    let mut peer = RawPeer::connect(listener.local_address());
    peer.say(&hello(&[LaneKind::Tls, LaneKind::Tcp]).encode());
    // A peer of this project, so it learns that TLS is asked for; and no more.
    assert_eq!(peer.hear_out(), 7);
}

#[test]
fn a_connection_goes_on_when_its_keys_are_used_up() {
    let _watchdog = Watchdog::start("keys_are_used_up");
    let authority = Authority::new("authority");
    let mut options = authority.options(&authority.sign());
    let sides = with_short_keys(&options);
    let (near, far) = meet(&sides[0], &sides[1]).unwrap();
    // Six times as many records as a key is good for, both ways at once, then one way and the other.
    let long: Vec<u8> = (0..600 * (16 << 10)).map(|at| (at % 251) as u8).collect();
    for ways in [
        vec![(&near, &far), (&far, &near)],
        vec![(&near, &far)],
        vec![(&far, &near)],
    ] {
        let under_way: Vec<_> = ways
            .into_iter()
            .map(|(from, to)| {
                let posted = to.recv_message(Tag(1), TagMask::FULL);
                (posted, from.send(Tag(1), long.clone()))
            })
            .collect();
        for (posted, sent) in under_way {
            sent.done().unwrap();
            assert!(posted.done().unwrap().segments[0][..] == long);
        }
    }
    exchange(&near, &far);

    // Keys of TLS 1.2 cannot be renewed, so it ends, before they are worn out.
    options.max_version = TlsVersion::V1_2;
    let sides = with_short_keys(&options);
    let (near, far) = meet(&sides[0], &sides[1]).unwrap();
    exchange(&near, &far);
    let posted = far.recv_message(Tag(1), TagMask::FULL);
    let error = near.send(Tag(1), long).done().unwrap_err();
    assert!(error.to_string().contains("keys are used up"), "{error}");
    posted.done().unwrap_err();
}

/// Two sides whose keys are good for a hundred records
fn with_short_keys(options: &TlsOptions) -> [Context; 2] {
    [(); 2].map(|()| encrypted(&tls_with_short_keys(options, 100).unwrap()))
}

fn context(lanes: &[LaneKind], tls: Option<&Tls>) -> Context {
    let mut config = Config::default();
    // Not loaded where TLS is: and tests do without it.
    config.lanes = lanes
        .iter()
        .copied()
        .filter(|lane| *lane != LaneKind::Ucx)
        .collect();
    config.tls = tls.cloned();
    Context::new(config).unwrap()
}

fn encrypted(tls: &Tls) -> Context {
    context(&[LaneKind::Tls], Some(tls))
}

fn meet(near: &Context, far: &Context) -> Result<(Endpoint, Endpoint), ConnectError> {
    let listener = far.listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let near = near.connect(&listener.local_address().to_string()).done()?;
    Ok((near, accept.done().unwrap()))
}

fn exchange(near: &Endpoint, far: &Endpoint) {
    let long = vec![7; 300_000];
    for (from, to) in [(near, far), (far, near)] {
        for message in [&b"a secret"[..], &long] {
            let posted = to.recv_message(Tag(1), TagMask::FULL);
            from.send(Tag(1), message.to_vec()).done().unwrap();
            assert_eq!(posted.done().unwrap().segments[0][..], *message);
        }
    }
}

#[track_caller]
fn assert_certificate_refused(error: ConnectError, why: &str) {
    assert_matches!(
        error,
        ConnectError::Tls {
            source: TlsFailure::Certificate { .. },
            ..
        }
    );
    assert!(error.to_string().contains(why), "{error}");
}

#[track_caller]
fn assert_refused_by_peer(error: ConnectError, why: &str) {
    assert_matches!(
        error,
        ConnectError::Tls {
            source: TlsFailure::Refused { .. },
            ..
        }
    );
    assert!(error.to_string().contains(why), "{error}");
}
