//! Tags: a receiver chooses which message it wants next, and an executor of your choice awaits it.
//!
//! `cargo run -p backhaul --example tagged_receive`
//!
//! A request is a future without a runtime of its own; `pollster` is the smallest executor there is.

use std::error::Error;

use backhaul::{Config, Context, Tag, TagMask};

/// The lower half of a tag says what a message is, the upper half who it is from
const KIND: TagMask = TagMask(0xffff_ffff);
const NUMBER: u64 = 1;
const TEXT: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    pollster::block_on(run())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let context = Context::new(Config::default())?;
    let listener = context.listen("127.0.0.1:0")?;
    let connecting = context.connect(&listener.local_address().to_string());
    let (far, near) = (listener.accept().await?, connecting.await?);

    near.send(from(1, TEXT), &b"one"[..]).await?;
    near.send(from(1, NUMBER), &b"\x07"[..]).await?;
    near.send(from(2, TEXT), &b"two"[..]).await?;

    // By both halves: the last message that was sent, though others wait before it.
    let text = far.recv(from(2, TEXT), TagMask::FULL, vec![0; 16]).await?;
    assert_eq!(text.bytes, 3);
    let buffer: Vec<u8> = text.into_buffer().ok_or("a buffer of another type")?;
    assert_eq!(&buffer[..3], b"two");

    // Selects by the kind alone, from any sender; the tag says who it was.
    let number = far.recv(Tag(NUMBER), KIND, vec![0; 16]).await?;
    assert_eq!((number.bytes, number.tag), (1, from(1, NUMBER)));

    // Without a buffer: the fabric allocates for what comes.
    let rest = far.recv_message(Tag(0), TagMask::ANY).await?;
    let text = str::from_utf8(&rest.segments[0])?;
    println!(
        "{}, then a number, then {text}",
        str::from_utf8(&buffer[..3])?
    );

    near.close().await?;
    Ok(())
}

fn from(rank: u64, kind: u64) -> Tag {
    Tag(rank << 32 | kind)
}

#[test]
fn it_runs_as_it_stands() -> Result<(), Box<dyn Error>> {
    main()
}
