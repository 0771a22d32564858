//! The block of the page for Rust developers: it is this one, and it runs.

use std::error::Error;

// As the page has it.
#[rustfmt::skip]
async fn block() -> Result<(), Box<dyn Error>> {
    use backhaul::{Config, Context, Tag, TagMask};

    let context = Context::new(Config::default())?;
    let listener = context.listen("127.0.0.1:0")?;
    let connecting = context.connect(&listener.local_address().to_string());
    let (far, near) = (listener.accept().await?, connecting.await?);

    near.send(Tag(7), &b"hello"[..]).await?;
    let received = far.recv(Tag(7), TagMask::FULL, vec![0; 16]).await?;
    println!("{} bytes over {}: {}", received.bytes, far.lane().name(), far.info().reason);
    Ok(())
}

#[test]
fn the_block_of_the_page_runs() {
    pollster::block_on(block()).expect("it is shown to work");
}

#[test]
fn it_is_the_one_that_the_page_shows() {
    let page = include_str!("../../../docs/users/rust.md");
    let (_, shown) = page.split_once("```rust\n").expect("it has one");
    let (shown, _) = shown.split_once("```").expect("it ends");
    let shown: Vec<_> = shown.lines().map(str::trim).collect();
    let ours: Vec<_> = include_str!("users_page.rs")
        .lines()
        .map(str::trim)
        .collect();
    assert!(
        ours.windows(shown.len()).any(|lines| lines == shown),
        "{shown:#?}"
    );
}
