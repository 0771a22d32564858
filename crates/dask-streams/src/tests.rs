//! Tests of a defect in the core on the engine's thread.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::time::Duration;

use backhaul::{Config, Context};
use backhaul_dask::scheduler::{self, SchedulerCore};

use super::*;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(300));

#[test]
fn a_panic_on_the_engines_thread_leaves_all_messages_to_their_reader() {
    let context = Context::new(Config::default()).unwrap();
    let listener = context.listen("127.0.0.1:0").unwrap();
    let accept = listener.accept();
    let near = context.connect(&listener.local_address().to_string());
    let near = near.wait(PATIENCE).unwrap().unwrap();
    let far = accept.wait(PATIENCE).unwrap().unwrap();

    let core = HotCore::new(SchedulerCore::new(scheduler::Config::default()));
    let streams = Streams::begin(Arc::new(Mutex::new(core)), HotSettings::default());
    let known = streams.add(PeerKind::Worker, "worker", far.frames());
    // The core has no peer of this number, and panics when it looks for it.
    let stream = Arc::new(PeerStream {
        streams: Arc::clone(&streams),
        peer: PeerId(known.0 + 1),
    });
    assert_eq!(far.frames().tap(stream).unwrap(), 0);
    far.frames().caught_up(0);
    assert_eq!(streams.core().failure(), None);

    for number in 0..3_u8 {
        let sent = near.send_frames(Segments::from_iter([Bytes::from(vec![number; 9])]));
        let message = far.recv_frames().wait(PATIENCE).unwrap().unwrap();
        assert_eq!(message.segments[0][..], [number; 9]);
        sent.wait(PATIENCE).unwrap().unwrap();
    }
    let failure = streams.core().failure().map(str::to_owned);
    let failure = failure.expect("the panic is noted");
    assert!(failure.contains("index out of bounds"), "{failure}");
    assert!(streams.flush(), "somebody else hears of it");
    // Nothing is handled any more, though the core knows this peer.
    let handled = streams.core().handle(known, b"whatever it is", 0.0);
    assert!(!handled);
    assert_eq!(streams.stop().notes.failure, Some(failure));
}
