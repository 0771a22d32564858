//! Listening and connecting: good addresses and bad ones.

use std::net::TcpListener;

use backhaul::{
    AcceptError, ConfigError, ConnectError, Context, ContextError, ListenError, Tag, TagMask,
};

use crate::executor::{Task, run_all};
use crate::harness::LOOPBACK;
use crate::{Finish, Harness, assert_matches, wait_until};

/// Accepts that wait are served in order, each with one peer
pub fn many_accepts_at_once_get_a_peer_each(harness: &Harness) {
    const COUNT: usize = 20;
    let (near, far) = (harness.context(), harness.context());
    let listener = far.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    let (listener, near, address) = (&listener, &near, &address);
    let mut tasks: Vec<Task<'_, u16>> = Vec::new();
    for _ in 0..COUNT {
        tasks.push(Box::pin(async move {
            let endpoint = listener.accept().await.unwrap();
            let request = endpoint.recv(Tag(1), TagMask::FULL, vec![0; 1]);
            assert_eq!(request.await.unwrap().bytes, 1);
            endpoint.peer_address().port()
        }));
        tasks.push(Box::pin(async move {
            let endpoint = near.connect(address).await.unwrap();
            endpoint.send(Tag(1), &b"x"[..]).await.unwrap();
            let port = endpoint.local_address().port();
            endpoint.watch_close().await.unwrap();
            port
        }));
    }
    let mut ports = run_all(tasks);
    ports.sort_unstable();
    let pairs = ports.as_chunks::<2>().0;
    assert!(pairs.iter().all(|[one, other]| one == other), "{ports:?}");
}

/// Peers that come before a call of `accept` are kept, with what they sent
pub fn peers_that_nobody_accepted_yet_are_kept(harness: &Harness) {
    let (near, far) = (harness.context(), harness.context());
    let listener = far.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    let endpoint = near.connect(&address).done().unwrap();
    endpoint.send(Tag(1), &b"early"[..]).done().unwrap();
    wait_until(|| listener.statistics().waiting == 1);
    let accepted = listener.accept().done().unwrap();
    let message = accepted.recv_message(Tag(1), TagMask::FULL).done().unwrap();
    assert_eq!(message.segments[0][..], *b"early");
    assert_eq!(listener.statistics().waiting, 0);
}

/// Peers beyond the backlog wait, and are served when there is room
pub fn more_peers_than_the_backlog_are_served_in_the_end(harness: &Harness) {
    const COUNT: usize = 30;
    let near = harness.context();
    let far = harness.context_with(|config| {
        config.backlog = 4;
        config.handshakes_max = 2;
    });
    let listener = far.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    let connects: Vec<_> = (0..COUNT).map(|_| near.connect(&address)).collect();
    let mut accepted = Vec::new();
    for _ in 0..COUNT {
        accepted.push(listener.accept().done().unwrap());
    }
    for connect in connects {
        harness.assert_lane(&connect.done().unwrap());
    }
}

/// Closing a listener ends its accepts, spares its endpoints, and frees its port
pub fn a_closed_listener_accepts_no_more(harness: &Harness) {
    let (near, far) = (harness.context(), harness.context());
    let listener = far.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    let (endpoint, accepted) = harness.connect(&near, &listener);
    let waiting = [listener.accept(), listener.accept()];
    listener.close();
    for accept in waiting {
        assert_matches!(accept.done().unwrap_err(), AcceptError::Closed);
    }
    assert_matches!(listener.accept().done().unwrap_err(), AcceptError::Closed);
    listener.close();
    assert_matches!(
        near.connect(&address).done().unwrap_err(),
        ConnectError::Io { .. }
    );
    let posted = accepted.recv_message(Tag(1), TagMask::FULL);
    endpoint.send(Tag(1), &b"on"[..]).done().unwrap();
    posted.done().unwrap();
    let again = far.listen(&address).unwrap();
    harness.connect(&near, &again);
}

/// A peer that was never accepted learns that the listener is gone
pub fn peers_not_accepted_are_disconnected_by_a_close(harness: &Harness) {
    let (near, far) = (harness.context(), harness.context());
    let listener = far.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    let endpoint = near.connect(&address).done().unwrap();
    drop(listener);
    endpoint.watch_close().done().unwrap();
}

/// A port that another holds
pub fn a_busy_port_is_an_error_with_the_address(harness: &Harness) {
    let holder = TcpListener::bind(LOOPBACK).unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let error = harness.context().listen(&address).unwrap_err();
    assert_matches!(
        &error,
        ListenError::Io { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse
    );
    assert!(error.to_string().contains(&address), "{error}");
}

/// No process listens there
pub fn a_refused_connection_is_an_error_with_the_address(harness: &Harness) {
    let holder = TcpListener::bind(LOOPBACK).unwrap();
    let address = holder.local_addr().unwrap().to_string();
    drop(holder);
    let error = harness.context().connect(&address).done().unwrap_err();
    assert_matches!(
        &error,
        ConnectError::Io { source, .. } if source.kind() == std::io::ErrorKind::ConnectionRefused
    );
    assert!(error.to_string().contains(&address), "{error}");
}

/// Texts that are no addresses, at both ends
pub fn a_bad_address_is_an_error_with_the_text(harness: &Harness) {
    let context = harness.context();
    for text in [
        "",
        "host",
        "127.0.0.1",
        "127.0.0.1:99999",
        "127.0.0.1:-1",
        "tcp://127.0.0.1:1",
        "::1:80",
        "[::1",
        "a b:1",
        "127.0.0.1:1 ",
    ] {
        let error = context.listen(text).unwrap_err();
        assert_matches!(&error, ListenError::Address(error) if error.address == text);
        assert!(error.to_string().contains("host:port"), "{error}");
        let error = context.connect(text).done().unwrap_err();
        assert_matches!(&error, ConnectError::Address(error) if error.address == text);
        assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
    }
}

/// A name that no host has
pub fn a_name_that_does_not_resolve_is_an_error_with_the_name(harness: &Harness) {
    let context = harness.context();
    // Reserved never to exist: RFC 6761, section 6.4.
    let address = "nobody.invalid:1";
    let error = context.connect(address).done().unwrap_err();
    assert_matches!(&error, ConnectError::Address(_));
    assert!(error.to_string().contains(address), "{error}");
    let error = context.listen(address).unwrap_err();
    assert_matches!(&error, ListenError::Address(_));
    assert!(error.to_string().contains(address), "{error}");
    let connect = context.connect(address);
    connect.cancel();
    assert_matches!(
        connect.done().unwrap_err(),
        ConnectError::Address(_) | ConnectError::Cancelled { .. }
    );
}

/// Names, wildcards and IPv6 work where the machine has them
pub fn names_and_wildcards_are_addresses(harness: &Harness) {
    let (near, far) = (harness.context(), harness.context());
    for (listen, connect) in [
        ("localhost:0", "localhost"),
        ("0.0.0.0:0", "127.0.0.1"),
        (":0", "127.0.0.1"),
        ("[::1]:0", "[::1]"),
        ("[::]:0", "[::1]"),
    ] {
        let listener = match far.listen(listen) {
            Ok(listener) => listener,
            // A machine without IPv6.
            Err(ListenError::Io { .. }) if listen.starts_with('[') => continue,
            Err(error) => panic!("{error}"),
        };
        let accept = listener.accept();
        let port = listener.local_address().port();
        let connected = near.connect(&format!("{connect}:{port}")).done();
        harness.assert_lane(&connected.unwrap());
        harness.assert_lane(&accept.done().unwrap());
    }
}

/// Settings that cannot work are refused with their name and range
pub fn a_setting_out_of_range_is_an_error_with_the_value(harness: &Harness) {
    let error = Context::new(harness.config_with(|config| config.ring_bytes = 5000));
    assert_matches!(
        error.unwrap_err(),
        ContextError::Config(ConfigError::NotPowerOfTwo {
            name: "ring_bytes",
            value: 5000
        })
    );
    let error = Context::new(harness.config_with(|config| config.ring_bytes = 1024));
    let error = error.unwrap_err();
    assert_matches!(
        &error,
        ContextError::Config(ConfigError::OutOfRange {
            name: "ring_bytes",
            value: 1024,
            ..
        })
    );
    assert!(error.to_string().contains("1024"), "{error}");
    let error = Context::new(harness.config_with(|config| config.backlog = 0));
    assert_matches!(
        error.unwrap_err(),
        ContextError::Config(ConfigError::OutOfRange {
            name: "backlog",
            ..
        })
    );
}
