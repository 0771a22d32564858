//! What a worker has that tasks may hold: pools of ids and sums, and who holds what.
