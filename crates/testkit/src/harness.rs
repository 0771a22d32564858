//! Connected endpoints on one lane, whichever it is and however it comes about.

use std::time::Duration;

use backhaul::{Config, Context, Endpoint, LaneKind, Listener};
use backhaul_shm::completion::SLOTS;

use crate::Finish;

/// Makes what a case needs, on the lane it is run for
///
/// [`Harness::of_lane`] makes that of a lane of this crate. For a lane or a carrier that is made
/// elsewhere, fill in the fields: how its configuration is made, which lane results, and what
/// holds there.
#[derive(Clone, Debug)]
pub struct Harness {
    /// The lane that results
    pub lane: LaneKind,
    /// How callers wait
    pub spin: Spin,
    /// Makes a configuration with which two contexts of this machine meet on the lane
    pub configure: fn(&mut Config),
    /// Messages that may be lent to a peer at once, of what is sent as shared from an arena; zero
    /// where all is copied
    pub leases_max: usize,
    /// Path of the peer program, without which cases between processes cannot run
    pub peer_program: Option<&'static str>,
    /// Variables that the peer program finds in its environment
    pub peer_environment: Vec<(&'static str, String)>,
    /// Why no case can run here, if so
    pub skipped: Option<String>,
}

/// How callers wait
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spin {
    /// They poll for a while, then sleep
    Polling,
    /// They sleep at once, as on a machine with one core
    Sleeping,
}

/// Two connected endpoints, each of a context of its own
#[derive(Debug)]
pub struct Pair {
    /// The side that connected
    pub near: Endpoint,
    /// The side that accepted
    pub far: Endpoint,
    /// Context of `near`
    pub near_context: Context,
    /// Context of `far`
    pub far_context: Context,
}

impl Spin {
    /// The time to poll for
    pub fn budget(self) -> Duration {
        match self {
            // Explicit, so that it is the same on every machine.
            Self::Polling => Duration::from_micros(50),
            Self::Sleeping => Duration::ZERO,
        }
    }
}

impl Harness {
    /// The harness of a lane of this crate, without a peer program
    pub fn of_lane(lane: LaneKind, spin: Spin) -> Self {
        let configure: fn(&mut Config) = match lane {
            LaneKind::Inproc => |config| config.lanes = vec![LaneKind::Inproc],
            LaneKind::Shm => |config| config.lanes = vec![LaneKind::Shm],
            LaneKind::Ucx => crate::ucx::configure,
            LaneKind::Tcp => |config| config.lanes = vec![LaneKind::Tcp],
            LaneKind::Tls => crate::tls::configure,
            LaneKind::Experimental => crate::toy::configure,
        };
        let leases_max = match lane {
            LaneKind::Inproc | LaneKind::Shm => SLOTS,
            LaneKind::Ucx | LaneKind::Tcp | LaneKind::Tls | LaneKind::Experimental => 0,
        };
        Self {
            lane,
            spin,
            configure,
            leases_max,
            peer_program: None,
            peer_environment: match lane {
                LaneKind::Tls => crate::tls::environment(),
                _ => Vec::new(),
            },
            skipped: None,
        }
    }

    /// The same, with a peer program
    #[must_use]
    pub fn with_peer_program(self, path: &'static str) -> Self {
        Self {
            peer_program: Some(path),
            ..self
        }
    }

    /// Returns whether memory is lent on the lane
    pub fn lends(&self) -> bool {
        self.leases_max > 0
    }

    /// The configuration of this lane
    pub fn config(&self) -> Config {
        config(self.configure, self.spin.budget())
    }

    /// The configuration with changes
    pub fn config_with(&self, change: impl FnOnce(&mut Config)) -> Config {
        let mut config = self.config();
        change(&mut config);
        config
    }

    /// A context
    pub fn context(&self) -> Context {
        Context::new(self.config()).unwrap()
    }

    /// A context whose configuration is changed
    pub fn context_with(&self, change: impl FnOnce(&mut Config)) -> Context {
        Context::new(self.config_with(change)).unwrap()
    }

    /// Connected endpoints
    pub fn pair(&self) -> Pair {
        self.pair_with(|_| {})
    }

    /// Connected endpoints, the configuration of both changed
    pub fn pair_with(&self, change: impl Fn(&mut Config)) -> Pair {
        self.pair_of(self.context_with(&change), self.context_with(&change))
    }

    /// Connected endpoints of two contexts, or of one
    pub fn pair_of(&self, near_context: Context, far_context: Context) -> Pair {
        let listener = far_context.listen(LOOPBACK).unwrap();
        let (near, far) = self.connect(&near_context, &listener);
        Pair {
            near,
            far,
            near_context,
            far_context,
        }
    }

    /// Connects to a listener to which no other peer connects now
    pub fn connect(&self, context: &Context, listener: &Listener) -> (Endpoint, Endpoint) {
        let accept = listener.accept();
        let address = listener.local_address().to_string();
        let near = context.connect(&address).done().unwrap();
        let far = accept.done().unwrap();
        self.assert_lane(&near);
        self.assert_lane(&far);
        (near, far)
    }

    /// Asserts that an endpoint is on the lane of this harness
    #[track_caller]
    pub fn assert_lane(&self, endpoint: &Endpoint) {
        let info = endpoint.info();
        assert_eq!(info.lane, self.lane, "because: {}", info.reason);
        assert_eq!(endpoint.lane(), self.lane);
    }
}

/// The configuration of a lane, for tests
pub fn config(configure: fn(&mut Config), spin: Duration) -> Config {
    let mut config = Config::default();
    config.spin = spin;
    // Low, so that small tests lend; whatever the default is.
    config.lease_bytes_min = 128 << 10;
    configure(&mut config);
    config
}

/// Any port of this machine
pub const LOOPBACK: &str = "127.0.0.1:0";
