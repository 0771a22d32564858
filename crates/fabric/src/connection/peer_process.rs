//! Watch on the processes at the other ends of connections: reports the end of one to its
//! connections.
//!
//! The sentinel of a connection reports the end of its peer, but not while a child that the peer
//! has forked holds a copy of the socket. The kernel's descriptor of the process (`pidfd_open`)
//! does. There is one for each process, however many connections lead there.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use rustix::event::epoll::EventFlags;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::interest::PORT_PROCESS;
use crate::runtime::{Engine, Source, SourceId, lock};

/// The processes that a context has connections to, as far as they are on this host
#[derive(Default)]
pub(crate) struct PeerProcesses(Mutex<HashMap<Pid, Weak<PeerProcess>>>);

/// A process that is watched as long as this exists
pub(crate) struct PeerProcess {
    engine: Arc<Engine>,
    id: SourceId,
    watch: Arc<Watch>,
}

/// A connection that gets the end of a process reported, until this is dropped
pub(crate) struct Membership {
    process: Arc<PeerProcess>,
    id: SourceId,
}

struct Watch {
    engine: Weak<Engine>,
    /// Readable once the process has ended
    pidfd: OwnedFd,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    ids: BTreeSet<SourceId>,
    has_ended: bool,
}

impl PeerProcesses {
    /// Watches the process at the other end of a Unix socket
    ///
    /// `None` where that is this process, or the system does not let us: the sentinel is left then.
    pub(crate) fn of_socket(
        &self,
        engine: &Arc<Engine>,
        socket: impl AsFd,
    ) -> Option<Arc<PeerProcess>> {
        // A process of another name space has no id here, and one that has ended may have left its
        // id to another: then our peer has ended, too, and the sentinel says so before long.
        let peer = backhaul_sys::peer::credentials(socket.as_fd()).ok()?;
        let pid = Pid::from_raw(i32::try_from(peer.pid?.get()).ok()?)?;
        if pid == getpid() {
            return None;
        }
        let mut processes = lock(&self.0);
        let known = processes.get(&pid).and_then(Weak::upgrade);
        if let Some(process) = known.filter(|process| !lock(&process.watch.members).has_ended) {
            return Some(process);
        }
        match PeerProcess::open(engine, pid) {
            Ok(process) => {
                processes.retain(|_, process| process.strong_count() > 0);
                processes.insert(pid, Arc::downgrade(&process));
                Some(process)
            }
            Err(error) => {
                tracing::debug!(%error, pid = pid.as_raw_nonzero(), "a peer's process is not watched");
                None
            }
        }
    }
}

impl PeerProcess {
    fn open(engine: &Arc<Engine>, pid: Pid) -> std::io::Result<Arc<Self>> {
        let watch = Arc::new(Watch {
            engine: Arc::downgrade(engine),
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            members: Mutex::default(),
        });
        let id = engine.register(Arc::clone(&watch) as Arc<dyn Source>);
        let process = Arc::new(Self {
            engine: Arc::clone(engine),
            id,
            watch,
        });
        engine.watch(id, 0, &process.watch.pidfd, EventFlags::IN)?;
        Ok(process)
    }

    /// Has the source under that id called, on its port of the peer's process, when that ends
    pub(super) fn join(self: Arc<Self>, id: SourceId) -> Membership {
        let mut members = lock(&self.watch.members);
        members.ids.insert(id);
        let has_ended = members.has_ended;
        drop(members);
        if has_ended {
            self.engine.visit(id, PORT_PROCESS);
        }
        Membership { process: self, id }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.engine.unwatch(&self.watch.pidfd);
        self.engine.deregister(self.id);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock(&self.process.watch.members).ids.remove(&self.id);
    }
}

impl Source for Watch {
    fn on_ready(self: Arc<Self>, _port: u8, _flags: EventFlags) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        // It stays readable.
        engine.unwatch(&self.pidfd);
        let mut members = lock(&self.members);
        members.has_ended = true;
        let ids = members.ids.clone();
        drop(members);
        for id in ids {
            engine.visit(id, PORT_PROCESS);
        }
    }

    // The connections end by themselves, and with the last of them, this.
    fn on_stop(self: Arc<Self>) {}
}

impl fmt::Debug for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerProcess").finish_non_exhaustive()
    }
}
