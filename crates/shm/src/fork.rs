//! Detection of forks: finds whether this process is the one that made a value, or a fork of it
//!
//! A fork copies every value of this crate, with the memory that it shares with the parent and with
//! peers: two processes would hand out the same block, or give back the same lease. So what is
//! shared acts in the process that made it only, and asks here which one this is.
//!
//! The answer is a word on a page that the kernel wipes in a child, so asking costs a load. Where
//! it cannot (before Linux 4.14), the process id tells, for a system call.

#[cfg(not(loom))]
pub(crate) use self::real::Origin;

/// Stands in while loom explores: nothing forks there
#[cfg(loom)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin;

#[cfg(loom)]
impl Origin {
    pub(crate) fn here() -> Self {
        Self
    }

    pub(crate) fn is_here(self) -> bool {
        true
    }
}

#[cfg(not(loom))]
pub(crate) use crate::children::{Forks, watch_forks};

/// Stands in while loom explores
#[cfg(loom)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forks;

#[cfg(loom)]
impl Forks {
    pub(crate) fn so_far() -> Self {
        Self
    }

    pub(crate) fn when_ended(self, act: impl FnOnce() + Send + 'static) {
        act();
    }
}

#[cfg(loom)]
pub(crate) fn watch_forks() {}

#[cfg(not(loom))]
mod real {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::getpid;

    use crate::mapping::Mapping;

    /// The process in which a value was made
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) struct Origin(u64);

    impl Origin {
        /// This process
        pub(crate) fn here() -> Self {
            let Some(page) = PAGE.get_or_init(wiped_in_children) else {
                return Self(getpid().as_raw_nonzero().get() as u64);
            };
            // SAFETY: mapped for good, aligned to a page, and used as an atomic only.
            let word = unsafe { page.address().cast::<AtomicU64>().as_ref() };
            // Relaxed: a number that says only which process this is.
            match word.load(Ordering::Relaxed) {
                0 => {
                    // The first to ask after a fork, or ever: a number that no ancestor had.
                    let fresh = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
                    let set = word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
                    Self(set.map_or_else(|other| other, |_| fresh))
                }
                number => Self(number),
            }
        }

        /// Returns whether this still is that process, and not a child of it
        pub(crate) fn is_here(self) -> bool {
            self == Self::here()
        }
    }

    /// A page with the number of the process, where the kernel can wipe it
    static PAGE: OnceLock<Option<Mapping>> = OnceLock::new();
    /// Largest number given to this process or an ancestor
    static FORKS: AtomicU64 = AtomicU64::new(0);

    fn wiped_in_children() -> Option<Mapping> {
        let page = Mapping::anonymous(rustix::param::page_size()).ok()?;
        page.advise_wipe_on_fork().then_some(page)
    }
}
