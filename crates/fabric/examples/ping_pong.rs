//! How long a message takes: two endpoints of one program send eight bytes to and fro.
//!
//! `cargo run --release -p backhaul --example ping_pong`
//!
//! Requests are waited for by blocking here; `tagged_receive` awaits them.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use backhaul::{Config, Context, Endpoint, Tag, TagMask};

const ROUNDS: u32 = 1000;
/// Long enough that only a defect reaches it
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn main() -> Result<(), Box<dyn Error>> {
    let context = Context::new(Config::default())?;
    let listener = context.listen("127.0.0.1:0")?;
    let accepting = listener.accept();
    let near = context
        .connect(&listener.local_address().to_string())
        .wait(LIMIT)
        .ok_or("not connected in time")??;
    let far = accepting.wait(LIMIT).ok_or("nobody came in time")??;

    // A request owns its memory until it is over, so the buffer goes to and fro as well.
    let echo = thread::spawn(move || {
        (0..ROUNDS).try_for_each(|_| {
            let bytes = receive(&far).map_err(|error| error.to_string())?;
            send(&far, bytes).map_err(|error| error.to_string())
        })
    });
    let begin = Instant::now();
    let mut message = vec![0_u8; 8];
    for _ in 0..ROUNDS {
        send(&near, message)?;
        message = receive(&near)?;
    }
    let one_way = begin.elapsed() / ROUNDS / 2;
    echo.join().map_err(|_| "the other thread panicked")??;
    println!("lane {}: {one_way:?} one way", near.lane());
    Ok(())
}

fn send(endpoint: &Endpoint, bytes: Vec<u8>) -> Result<(), Box<dyn Error>> {
    let sending = endpoint.send(Tag(0), bytes);
    Ok(sending.wait(LIMIT).ok_or("not sent in time")??)
}

fn receive(endpoint: &Endpoint) -> Result<Vec<u8>, Box<dyn Error>> {
    let receiving = endpoint.recv(Tag(0), TagMask::FULL, vec![0_u8; 8]);
    let received = receiving.wait(LIMIT).ok_or("nothing came in time")??;
    received
        .into_buffer()
        .ok_or_else(|| "a buffer of another type".into())
}

#[test]
fn it_runs_as_it_stands() -> Result<(), Box<dyn Error>> {
    main()
}
