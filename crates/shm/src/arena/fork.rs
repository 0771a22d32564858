//! A fork of the process that has an arena

use std::cell::Cell;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use super::blocks::{BlockId, Blocks};
use super::{Arena, Shared};
use crate::children::ExpectedChild;

impl Arena {
    /// Makes the live blocks copy-on-write for a fork: the child sees their bytes of that moment,
    /// and neither process sees a later write of the other
    ///
    /// Hold the guard across the fork; then drop it in the parent, and call [`ForkGuard::in_child`]
    /// in the child. The arena waits meanwhile: this thread must not use it.
    ///
    /// A block that is freed while the child lives is handed out again when the child has ended or
    /// has started another program. Where the system has no descriptor or memory to notice that,
    /// the block is never handed out again.
    pub fn before_fork(&self) -> ForkGuard {
        let child = ExpectedChild::prepare().ok();
        let mut blocks = self.shared.lock();
        let inherited = blocks.as_mut().map(|blocks| blocks.pin_live());
        ForkGuard {
            // SAFETY: only the lifetime changes. `shared` keeps the mutex where it is for longer
            // than the guard lives, since `drop` ends the guard first.
            blocks: ManuallyDrop::new(unsafe {
                std::mem::transmute::<Option<MutexGuard<'_, Blocks>>, Option<MutexGuard<'_, _>>>(
                    blocks,
                )
            }),
            inherited: inherited.unwrap_or_default(),
            child,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Makes ready for every fork of this process, by any thread, as with
    /// [`before_fork`](Self::before_fork)
    ///
    /// Forks that start a program are not covered: `vfork` and `posix_spawn` call no handlers.
    pub fn watch_forks(&self) {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the three functions stay where they are, and may be called by any thread that
            // forks. An error means that there is no memory: then no arena is notified.
            unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        });
        let mut watched = watched();
        watched.retain(|arena| arena.strong_count() > 0);
        watched.push(Arc::downgrade(&self.shared));
    }
}

/// Arenas that are notified of forks
static WATCHED: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

fn watched() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks and arenas that a thread holds while it forks
struct Held {
    guards: Vec<ForkGuard>,
    /// Released last, and in the child too, which has no other thread to release it
    _watched: MutexGuard<'static, Vec<Weak<Shared>>>,
}

thread_local! {
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

unsafe extern "C" fn prepare() {
    let watched = watched();
    let arenas = watched.iter().filter_map(Weak::upgrade);
    let guards = arenas
        // Memory that this process inherited is private already, and not its to give back.
        .filter(|shared| shared.origin.is_here())
        .map(|shared| Arena { shared }.before_fork())
        .collect();
    let held = Held {
        guards,
        _watched: watched,
    };
    // A thread that ends forks no more, but if it does, nothing is held.
    let _ = HELD.try_with(|slot| slot.set(Some(held)));
}

unsafe extern "C" fn in_parent() {
    let _ = HELD.try_with(|slot| drop(slot.take()));
}

unsafe extern "C" fn in_child() {
    let held = HELD.try_with(Cell::take).ok().flatten();
    for guard in held.into_iter().flat_map(|held| held.guards) {
        // The child runs on: it was never promised more, and most only start a program.
        let _ = guard.in_child();
    }
}

/// Holds an arena still while the process forks
///
/// Dropping it lets the arena go on, in the parent.
#[must_use = "the arena is held still only while the guard lives"]
pub struct ForkGuard {
    /// Points into `shared`
    blocks: ManuallyDrop<Option<MutexGuard<'static, Blocks>>>,
    /// Blocks that are pinned for the child
    inherited: Vec<BlockId>,
    child: Option<ExpectedChild>,
    shared: Arc<Shared>,
}

impl ForkGuard {
    /// Maps the blocks privately in the child that the parent found no room to make copy-on-write
    ///
    /// A later write of the parent to such a block may still show in the child.
    ///
    /// # Errors
    ///
    /// The system has no room for the mappings in the child either: what the child writes into such
    /// blocks, the parent may see.
    pub fn in_child(mut self) -> io::Result<()> {
        if let Some(child) = self.child.take() {
            child.in_child();
        }
        match &*self.blocks {
            Some(blocks) => blocks.make_private_in_child(),
            None => Ok(()),
        }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, before `shared` that it points into.
        unsafe { ManuallyDrop::drop(&mut self.blocks) };
        let inherited = std::mem::take(&mut self.inherited);
        if let Some(child) = self.child.take().filter(|_| !inherited.is_empty()) {
            // An arena that has gone has nothing to hand out.
            let shared = Arc::downgrade(&self.shared);
            child.when_ended(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.unpin_all(&inherited);
                }
            });
        }
    }
}

impl fmt::Debug for ForkGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkGuard").finish_non_exhaustive()
    }
}
