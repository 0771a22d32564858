#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use super::*;

/// Counts its visits
#[derive(Default)]
struct Counting {
    visits: AtomicUsize,
    next: Mutex<Option<Instant>>,
}

impl Source for Counting {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        self.visits.fetch_add(1, Ordering::SeqCst);
    }

    fn on_tick(self: Arc<Self>) -> bool {
        self.visits.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn on_deadline(self: Arc<Self>, _now: Instant) -> Option<Instant> {
        self.visits.fetch_add(1, Ordering::SeqCst);
        *lock(&self.next)
    }

    fn on_stop(self: Arc<Self>) {}
}

impl Counting {
    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

#[test]
fn what_is_expected_is_found_awake_and_what_does_not_come_is_slept_for() {
    let engine = Engine::new(Duration::from_secs(60)).unwrap();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let far = Instant::now() + Duration::from_secs(3600);
    engine.expect();
    std::thread::scope(|scope| {
        scope.spawn(|| engine.doorbell.notify());
        engine.wait(&mut events, far).unwrap();
    });
    assert_eq!(events.drain(..).count(), 1);
    engine.doorbell.clear();

    // Nothing comes but a deadline, behind which no caller polls.
    let engine = Engine::new(Duration::from_micros(50)).unwrap();
    engine.thread.get_or_init(|| std::thread::current().id());
    let source = engine.register(Arc::new(Counting::default()));
    for expects in [true, false] {
        if expects {
            engine.expect();
        }
        let due = Instant::now() + Duration::from_millis(5);
        engine.schedule(source, due);
        engine.wait(&mut events, far).unwrap();
        assert!(events.is_empty());
        assert!(Instant::now() >= due);
        assert!(!engine.expects.load(Ordering::Relaxed));
        engine.visit_due(Instant::now());
    }
}

#[test]
fn a_thousand_idle_sources_cost_no_visit_until_theirs_is_due() {
    let engine = Engine::new(Duration::ZERO).unwrap();
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let idle: Vec<_> = (0..1000)
        .map(|index| {
            let source = Arc::new(Counting::default());
            let id = engine.register(Arc::clone(&source) as Arc<dyn Source>);
            engine.schedule(id, start + second * (100 + index));
            source
        })
        .collect();
    let busy = Arc::new(Counting::default());
    let id = engine.register(Arc::clone(&busy) as Arc<dyn Source>);
    engine.schedule(id, start + second);
    for tenths in 0..990 {
        *lock(&busy.next) = Some(start + second * tenths / 10 + second / 10);
        engine.visit_due(start + second * tenths / 10);
    }
    assert_eq!(busy.visits(), 980);
    assert!(idle.iter().all(|source| source.visits() == 0));
    engine.visit_due(start + second * 100);
    assert_eq!(idle.iter().map(|source| source.visits()).sum::<usize>(), 1);
}

#[test]
fn a_deadline_set_by_another_thread_wakes_the_engine() {
    let guard = Engine::start(Duration::ZERO).unwrap();
    let engine = guard.engine();
    let (heard, hears) = mpsc::channel();
    let id = engine.register(Arc::new(Reporting(heard)));
    engine.schedule(id, Instant::now() + Duration::from_secs(3600));
    let at = Instant::now() + Duration::from_millis(5);
    engine.schedule(id, at);
    assert!(hears.recv().unwrap() >= at);
}

/// Reports when its deadline passed
struct Reporting(mpsc::Sender<Instant>);

impl Source for Reporting {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {}

    fn on_deadline(self: Arc<Self>, now: Instant) -> Option<Instant> {
        self.0.send(now).unwrap();
        None
    }

    fn on_stop(self: Arc<Self>) {}
}

/// Deregisters another source as it is dropped
struct Chained {
    engine: Arc<Engine>,
    other: SourceId,
}

impl Source for Chained {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {}
    fn on_stop(self: Arc<Self>) {}
}

impl Drop for Chained {
    fn drop(&mut self) {
        self.engine.deregister(self.other);
    }
}

#[test]
fn a_source_may_deregister_others_as_it_is_dropped() {
    let engine = Arc::new(Engine::new(Duration::ZERO).unwrap());
    let chained = |other| {
        let engine = Arc::clone(&engine);
        Arc::new(Chained { engine, other })
    };
    let first = engine.register(Arc::new(Counting::default()));
    let second = engine.register(chained(first));
    engine.deregister(second);
    assert!(engine.source(first).is_none());
    let third = engine.register(Arc::new(Counting::default()));
    let fourth = engine.register(chained(third));
    engine.replace(fourth, Arc::new(Counting::default()));
    assert!(engine.source(third).is_none());
}

/// Panics whenever it is called, until it is stopped
#[derive(Default)]
struct Panicking {
    stops: AtomicUsize,
}

impl Source for Panicking {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        panic!("as this test wants");
    }

    fn on_tick(self: Arc<Self>) -> bool {
        panic!("as this test wants");
    }

    fn on_deadline(self: Arc<Self>, _now: Instant) -> Option<Instant> {
        panic!("as this test wants");
    }

    fn on_stop(self: Arc<Self>) {
        self.stops.fetch_add(1, Ordering::SeqCst);
        panic!("once more");
    }
}

#[test]
fn a_source_that_panics_ends_alone() {
    let engine = Engine::new(Duration::ZERO).unwrap();
    let other = Arc::new(Counting::default());
    let other_id = engine.register(Arc::clone(&other) as Arc<dyn Source>);
    let now = Instant::now();
    for way in 0..3 {
        let source = Arc::new(Panicking::default());
        let id = engine.register(Arc::clone(&source) as Arc<dyn Source>);
        match way {
            0 => {
                engine.call(id, |source| source.on_ready(0, EventFlags::IN));
            }
            1 => {
                assert!(engine.busy_poll(id));
                engine.tick();
            }
            _ => {
                engine.schedule(id, now);
                engine.schedule(other_id, now);
                engine.visit_due(now);
            }
        }
        assert_eq!(source.stops.load(Ordering::SeqCst), 1);
        assert!(engine.source(id).is_none());
        assert!(!engine.busy_poll(id));
    }
    assert_eq!(other.visits(), 1);
}
