//! A graph of tasks as numbers, in the order in which they are to run.

use thiserror::Error;

/// Where a task of the graph is, or is to be
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// It is a root that may be placed
    Root,
    /// It is placed when its inputs are there
    Later,
    /// Its result is on a worker already
    On(u32),
}

/// Tasks by number, lower ones first; what they need and who needs them
#[derive(Clone, Debug)]
pub struct Graph {
    places: Vec<Place>,
    needs: Lists,
    needed_by: Lists,
}

impl Graph {
    /// Reads a graph from two lists of numbers
    ///
    /// `places` has for each task -1 for a root, -2 for one that comes later, or the number of the
    /// worker that holds its result. `needs` has for each task how many others it needs, and their
    /// numbers.
    ///
    /// # Errors
    ///
    /// [`GraphError`] if a number cannot be, or the lists do not fit each other.
    pub fn read(places: &[i64], needs: &[u32]) -> Result<Self, GraphError> {
        let tasks = places.len();
        let places = places
            .iter()
            .enumerate()
            .map(|(task, &place)| match place {
                -1 => Ok(Place::Root),
                -2 => Ok(Place::Later),
                _ => u32::try_from(place)
                    .map(Place::On)
                    .map_err(|_| GraphError::Place { task, place }),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut lists = Lists::with_capacity(tasks, needs.len().saturating_sub(tasks));
        let mut counts = vec![0u32; tasks];
        let mut rest = needs;
        for task in 0..tasks {
            let Some((&count, after)) = rest.split_first() else {
                return Err(GraphError::Short { tasks, read: task });
            };
            let count = count as usize;
            if after.len() < count {
                return Err(GraphError::Short { tasks, read: task });
            }
            let (own, after) = after.split_at(count);
            for &need in own {
                match counts.get_mut(need as usize) {
                    Some(count) => *count += 1,
                    None => return Err(GraphError::Need { task, need, tasks }),
                }
            }
            lists.push(own);
            rest = after;
        }
        if !rest.is_empty() {
            return Err(GraphError::Long {
                tasks,
                left: rest.len(),
            });
        }
        let needed_by = lists.turned(&counts);
        Ok(Self {
            places,
            needs: lists,
            needed_by,
        })
    }

    /// How many tasks it has
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether it has none
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Where a task is, or is to be
    #[must_use]
    pub fn place(&self, task: u32) -> Place {
        self.places[task as usize]
    }

    /// Returns the tasks that a task needs
    #[must_use]
    pub fn needs(&self, task: u32) -> &[u32] {
        self.needs.get(task)
    }

    /// Returns the tasks that need a task
    #[must_use]
    pub fn needed_by(&self, task: u32) -> &[u32] {
        self.needed_by.get(task)
    }
}

/// A list of numbers for each number, in one piece of memory
#[derive(Clone, Debug)]
struct Lists {
    ends: Vec<u32>,
    all: Vec<u32>,
}

impl Lists {
    fn with_capacity(lists: usize, numbers: usize) -> Self {
        Self {
            ends: Vec::with_capacity(lists),
            all: Vec::with_capacity(numbers),
        }
    }

    fn push(&mut self, list: &[u32]) {
        self.all.extend_from_slice(list);
        self.ends.push(self.all.len() as u32);
    }

    fn get(&self, number: u32) -> &[u32] {
        let number = number as usize;
        let begin = if number == 0 {
            0
        } else {
            self.ends[number - 1]
        };
        &self.all[begin as usize..self.ends[number] as usize]
    }

    /// For each number the lists that it is in, given in how many
    fn turned(&self, counts: &[u32]) -> Self {
        let mut ends = Vec::with_capacity(counts.len());
        let mut next = Vec::with_capacity(counts.len());
        let mut sum = 0;
        for &count in counts {
            next.push(sum);
            sum += count;
            ends.push(sum);
        }
        let mut all = vec![0; sum as usize];
        for list in 0..self.ends.len() as u32 {
            for &number in self.get(list) {
                let at = &mut next[number as usize];
                all[*at as usize] = list;
                *at += 1;
            }
        }
        Self { ends, all }
    }
}

/// Two lists that are no graph
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum GraphError {
    /// A place that means nothing
    #[error("task {task} is at {place}, which is no worker, nor -1 for a root, nor -2 for later")]
    Place {
        /// The task
        task: usize,
        /// Value that was given
        place: i64,
    },
    /// A need that is not there
    #[error("task {task} needs {need} of {tasks} tasks")]
    Need {
        /// The task
        task: usize,
        /// Value that was given
        need: u32,
        /// How many tasks there are
        tasks: usize,
    },
    /// The needs end too early
    #[error("the needs of {read} tasks, of {tasks}")]
    Short {
        /// How many tasks there are
        tasks: usize,
        /// How many have all their needs
        read: usize,
    },
    /// The needs do not end
    #[error("{left} numbers after the needs of {tasks} tasks")]
    Long {
        /// How many tasks there are
        tasks: usize,
        /// How many numbers are left
        left: usize,
    },
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;

    #[test]
    fn who_needs_a_task_is_the_other_side_of_what_it_needs() {
        let graph = Graph::read(&[-1, 3, -2, -2], &[0, 0, 2, 0, 1, 1, 2]).unwrap();
        assert_eq!(graph.len(), 4);
        assert_eq!(graph.place(1), Place::On(3));
        assert_eq!(graph.needs(2), [0, 1]);
        assert_eq!(graph.needed_by(0), [2]);
        assert_eq!(graph.needed_by(2), [3]);
        assert!(graph.needed_by(3).is_empty());
    }

    #[test]
    fn lists_that_are_no_graph_are_refused_with_the_value() {
        let refused = |places: &[i64], needs: &[u32]| Graph::read(places, needs).unwrap_err();
        assert_eq!(
            refused(&[-3], &[0]),
            GraphError::Place { task: 0, place: -3 }
        );
        assert_eq!(
            refused(&[-1], &[1, 7]),
            GraphError::Need {
                task: 0,
                need: 7,
                tasks: 1
            }
        );
        assert_eq!(refused(&[-1], &[]), GraphError::Short { tasks: 1, read: 0 });
        assert_eq!(
            refused(&[-1], &[2, 0]),
            GraphError::Short { tasks: 1, read: 0 }
        );
        assert_eq!(
            refused(&[-1], &[0, 5]),
            GraphError::Long { tasks: 1, left: 1 }
        );
    }
}
