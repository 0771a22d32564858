//! A fork of the process that has an arena

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, MutexGuard};

use super::blocks::{Blocks, Chores};
use super::{Arena, Shared};

impl Arena {
    /// Makes ready for a fork: what is live now stays as it is for as long as the child looks at it
    ///
    /// Hold the guard across the fork; then drop it in the parent, and call [`ForkGuard::in_child`]
    /// in the child. The arena waits meanwhile: this thread must not use it.
    ///
    /// Live blocks are abandoned to the child, so that they are not handed out again once they are
    /// freed. The next blocks need pages from the system: forking costs what was saved.
    pub fn before_fork(&self) -> ForkGuard {
        let mut chores = Chores::default();
        let mut blocks = self.shared.lock();
        if let Some(blocks) = &mut blocks {
            blocks.abandon_live(&mut chores);
        }
        ForkGuard {
            // SAFETY: only the lifetime changes. `shared` keeps the mutex where it is for longer
            // than the guard lives, since `drop` ends the guard first.
            blocks: ManuallyDrop::new(unsafe {
                std::mem::transmute::<Option<MutexGuard<'_, Blocks>>, Option<MutexGuard<'_, _>>>(
                    blocks,
                )
            }),
            chores,
            shared: Arc::clone(&self.shared),
        }
    }
}

/// Holds an arena still while the process forks
///
/// Dropping it lets the arena go on, in the parent.
#[must_use = "the arena is held still only while the guard lives"]
pub struct ForkGuard {
    /// Points into `shared`
    blocks: ManuallyDrop<Option<MutexGuard<'static, Blocks>>>,
    /// What is to be done once the lock is released, in the parent
    chores: Chores,
    shared: Arc<Shared>,
}

impl ForkGuard {
    /// Has the child see its own copy of every block, as it was when the process forked
    ///
    /// What it writes there is its own, and it keeps what the parent frees. What the parent writes
    /// into a block that it has not freed may still show.
    ///
    /// # Errors
    ///
    /// The system has no room for the mappings: what the child writes into inherited blocks, the
    /// parent may see.
    pub fn in_child(self) -> io::Result<()> {
        let Some(blocks) = &*self.blocks else {
            return Ok(());
        };
        blocks.memories().try_for_each(|memory| {
            // SAFETY: that nobody sees what the child writes is what is wanted.
            unsafe { memory.make_private() }
        })
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, before `shared` that it points into.
        unsafe { ManuallyDrop::drop(&mut self.blocks) };
        self.shared.finish(std::mem::take(&mut self.chores));
    }
}

impl fmt::Debug for ForkGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkGuard").finish_non_exhaustive()
    }
}
