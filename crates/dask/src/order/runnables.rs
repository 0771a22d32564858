//! Tasks that are free to run but not on the critical path, and when they run.
//!
//! Run immediately they would spread the walk over the whole graph; run last they would hold the
//! results that they could have reduced. So each is followed forwards to the next task that needs
//! more than one other. The path is numbered if it ends at a leaf, or if all paths that such a task needs are
//! known; otherwise it is kept until they are.

use std::collections::VecDeque;

use super::error::OrderError;
use super::ids::TaskId;
use super::walk::Walk;

/// Tasks that can run one after the other
pub(super) type Path = Vec<TaskId>;

/// A path that is followed
struct Branch {
    /// How often the path split on the way here
    splits: i32,
    path: Path,
}

impl Walk<'_> {
    /// Follows every runnable task, and numbers or keeps the paths found
    pub(super) fn process_runnables(&mut self) -> Result<(), OrderError> {
        while !self.runnable.is_empty() {
            let mut candidates = std::mem::take(&mut self.runnable);
            while let Some(task) = candidates.pop() {
                if self.runnable_hull[task] || self.done[task] {
                    continue;
                }
                if self.is_leaf[task] {
                    self.number(task)?;
                    continue;
                }
                let path = vec![task];
                let mut branches = VecDeque::from([Branch { splits: 0, path }]);
                while let Some(branch) = branches.pop_front() {
                    self.follow(branch, &mut branches)?;
                }
            }
        }
        Ok(())
    }

    fn follow(
        &mut self,
        mut branch: Branch,
        branches: &mut VecDeque<Branch>,
    ) -> Result<(), OrderError> {
        let trimmed = self.trimmed;
        loop {
            let path = &mut branch.path;
            let current = *path.last().expect("a path starts with a task");
            self.runnable_hull[current] = true;
            let dependencies = trimmed.dependencies.of(current);
            let dependents = trimmed.dependents.of(current);
            let needed = self.needed[current];
            if dependents.is_empty() {
                if needed <= 1 {
                    return self.number_all(path);
                }
                self.runnable_hull[current] = false;
            } else if path.len() == 1 || dependencies.len() == 1 {
                if let [only] = dependents {
                    path.push(*only);
                    continue;
                }
                self.split(&branch, dependents, branches);
            } else if self.known_paths[current].is_some() {
                self.runnable_hull[current] = false;
                return self.join(current, branch, branches);
            } else if dependencies.len() > 1 && needed <= 1 {
                return self.number_all(path);
            } else {
                self.known_paths[current] = Some(vec![branch.path]);
                self.runnable_hull[current] = false;
            }
            return Ok(());
        }
    }

    /// Follows each dependent that needs nothing else
    fn split(&self, branch: &Branch, dependents: &[TaskId], branches: &mut VecDeque<Branch>) {
        let mut followed = dependents.to_vec();
        followed.retain(|&other| self.trimmed.dependencies.of(other).len() == 1);
        self.ranking.sort(&mut followed);
        for other in followed {
            let mut path = Vec::with_capacity(branch.path.len() + 1);
            path.extend_from_slice(&branch.path);
            path.push(other);
            branches.push_back(Branch {
                splits: branch.splits + 1,
                path,
            });
        }
    }

    /// Adds a path to the known ones of the task it leads to, and uses them up if they suffice
    fn join(
        &mut self,
        current: TaskId,
        branch: Branch,
        branches: &mut VecDeque<Branch>,
    ) -> Result<(), OrderError> {
        let known = self.known_paths[current].get_or_insert_default();
        known.push(branch.path);
        let needed = self.needed[current] as usize;
        if known.len() < needed {
            return Ok(());
        }
        let mut paths = self.known_paths[current].take().unwrap_or_default();
        // A path that leads to a task is that task and at least one before it.
        paths.retain(|path| !self.done[path[path.len() - 2]]);
        if paths.len() < needed {
            self.known_paths[current] = Some(paths);
            return Ok(());
        }
        if branch.splits > 1 {
            branches.push_back(Branch {
                splits: branch.splits - 1,
                path: paths.concat(),
            });
            return Ok(());
        }
        self.number_in_turn(paths.into())
    }

    /// Numbers all paths; one that is held up by another comes again after the others
    fn number_in_turn(&mut self, mut paths: VecDeque<Path>) -> Result<(), OrderError> {
        let mut held_up = 0;
        while let Some(path) = paths.pop_front() {
            let done_before = self.done_len;
            let mut tasks = path.iter();
            let waits = loop {
                match tasks.next() {
                    Some(&task) if self.needed[task] > 0 => break true,
                    Some(&task) => self.number(task)?,
                    None => break false,
                }
            };
            if self.done_len > done_before {
                held_up = 0;
            }
            if waits {
                paths.push_back(path);
                held_up += 1;
                if held_up > paths.len() {
                    return Err(OrderError::Unexpected {
                        what: "paths wait for each other",
                    });
                }
            }
        }
        Ok(())
    }

    fn number_all(&mut self, path: &[TaskId]) -> Result<(), OrderError> {
        path.iter().try_for_each(|&task| self.number(task))
    }
}
