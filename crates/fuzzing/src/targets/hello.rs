//! The body of a Hello.

use backhaul_proto::{HELLO_BODY_BYTES_MAX, Hello};

/// A Hello that decodes is within its limits, and comes back when it is encoded
pub(super) fn hello(data: &[u8]) {
    let Ok(hello) = Hello::decode_body(data) else {
        return;
    };
    assert!(hello.lanes.len() + hello.lanes_unknown.len() <= 32);
    assert!(hello.carriers.len() + hello.carriers_unknown.len() <= 32);
    assert!(hello.unix_name.len() <= 107 && hello.host_token.len() <= 64);
    let encoded = hello.encode();
    let body = &encoded[PREFIX_BYTES..];
    assert!(body.len() <= HELLO_BODY_BYTES_MAX);
    assert_eq!(Hello::decode_body(body).as_ref(), Ok(&hello));
}

/// Bytes in front of the body
pub(super) const PREFIX_BYTES: usize = 20;
