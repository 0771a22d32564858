//! Properties of the order of every graph, and orders known from Dask.

use proptest::prelude::*;

use super::*;

/// A graph of tasks by number
fn graph(kinds: &[TaskKind], dependencies: &[Vec<usize>]) -> Graph {
    let mut builder = GraphBuilder::with_capacity(kinds.len());
    let ids: Vec<TaskId> = kinds
        .iter()
        .enumerate()
        .map(|(index, &kind)| {
            let hash = (index as isize).wrapping_mul(0x9E37_79B9);
            let label = format!("task-{index}");
            builder.add_task(kind, hash, &label).expect("few tasks")
        })
        .collect();
    for (kind, others) in kinds.iter().zip(dependencies) {
        if *kind != TaskKind::External {
            let others: Vec<TaskId> = others.iter().map(|&other| ids[other]).collect();
            builder.add_dependencies(&others, 32);
        }
    }
    builder.build()
}

fn order_of_tasks(dependencies: &[Vec<usize>]) -> Result<Vec<usize>, OrderError> {
    let graph = graph(&vec![TaskKind::Run; dependencies.len()], dependencies);
    order(&graph).map(|tasks| tasks.into_iter().map(TaskId::index).collect())
}

#[test]
fn an_empty_graph_has_no_order() {
    assert_eq!(order_of_tasks(&[]), Ok(vec![]));
}

#[test]
fn a_cycle_is_an_error() {
    assert_eq!(
        order_of_tasks(&[vec![1], vec![0], vec![]]),
        Err(OrderError::Cycle)
    );
    assert_eq!(order_of_tasks(&[vec![0]]), Err(OrderError::Cycle));
}

#[test]
fn a_chain_runs_from_its_root() {
    assert_eq!(
        order_of_tasks(&[vec![1], vec![2], vec![]]),
        Ok(vec![2, 1, 0])
    );
}

#[test]
fn one_branch_is_finished_before_the_next() {
    // Two loads, each with a reduction, and what joins them.
    let dependencies = [vec![], vec![], vec![0], vec![1], vec![2, 3]];
    let ordered = order_of_tasks(&dependencies).expect("no cycle");
    let place = |task| ordered.iter().position(|&other| other == task);
    assert_eq!(place(0).map(|at| at + 1), place(2));
    assert_eq!(place(1).map(|at| at + 1), place(3));
}

#[test]
fn tasks_of_one_label_are_not_ordered() {
    let mut builder = GraphBuilder::with_capacity(2);
    for hash in [1, 2] {
        builder
            .add_task(TaskKind::Run, hash, "1")
            .expect("few tasks");
    }
    builder.add_dependencies(&[], 8);
    builder.add_dependencies(&[], 8);
    assert_eq!(order(&builder.build()), Err(OrderError::Ambiguous));
}

#[test]
fn external_tasks_get_no_place() {
    use TaskKind::{External, Run};
    let graph = graph(&[Run, Run, External], &[vec![2], vec![0, 2], vec![]]);
    let ordered = order(&graph).expect("no cycle");
    assert_eq!(ordered, [TaskId(0), TaskId(1)]);
}

/// Dependencies on tasks before, and what kind each task is
fn graphs() -> impl Strategy<Value = Vec<(bool, Vec<usize>)>> {
    let task = (any::<bool>(), prop::collection::vec(any::<usize>(), 0..5));
    prop::collection::vec(task, 1..60).prop_map(|mut tasks| {
        for (index, (_, others)) in tasks.iter_mut().enumerate() {
            others.iter_mut().for_each(|other| *other %= index.max(1));
            others.sort_unstable();
            others.dedup();
            if index == 0 {
                others.clear();
            }
        }
        tasks
    })
}

proptest! {
    #[test]
    fn every_task_comes_once_and_after_its_dependencies(tasks in graphs()) {
        let (data, dependencies): (Vec<bool>, Vec<Vec<usize>>) = tasks.into_iter().unzip();
        let kinds: Vec<TaskKind> = data
            .iter()
            .zip(&dependencies)
            .map(|(&data, others)| match data && others.is_empty() {
                true => TaskKind::Data,
                false => TaskKind::Run,
            })
            .collect();
        let ordered = match order(&graph(&kinds, &dependencies)) {
            Err(OrderError::UnknownListing) => return Ok(()),
            ordered => ordered.expect("no cycle"),
        };
        let mut places = vec![None; kinds.len()];
        for (place, task) in ordered.iter().enumerate() {
            prop_assert_eq!(places[task.index()].replace(place), None);
        }
        for (task, others) in dependencies.iter().enumerate() {
            prop_assert!(places[task].is_some());
            for &other in others {
                prop_assert!(places[other] < places[task]);
            }
        }
    }
}
