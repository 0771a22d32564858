"""`compute` of many Delayed objects: the expression that Dask makes, and what it leaves to Dask."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from dask.base import collections_to_expr
from dask.delayed import delayed
from distributed import Client, Scheduler, Worker
from distributed.utils_test import gen_cluster, inc

import dask
from backhaul.dask.client.compute import optimized_expression
from backhaul.dask.compat.names import FinalizeCompute, HLGExprGroup, HLGExprSequence

SWITCH = "distributed.comm.backhaul.hot-path.submit"
CLUSTER: dict[str, Any] = {
    "client": True,
    "scheduler_kwargs": {"protocol": "backhaul"},
    "worker_kwargs": {"protocol": "backhaul"},
}


@pytest.fixture(autouse=True)
def fresh(plain_dask: None) -> None:
    """Begin each test with Dask as it is, so that switches count."""


def collections() -> list[Any]:
    """Make Delayed objects that share tasks, one of which is not needed and one needed twice."""
    left = [delayed(inc)(value) for value in range(3)]
    total = delayed(sum)(left)
    with dask.annotate(priority=3):
        annotated = delayed(operator.neg)(total)
    return [total, annotated, left[1], total]


def described(expr: Any) -> list[Any]:
    """Tell what there is to an expression, but for its name, which is by chance."""
    assert type(expr) is HLGExprSequence
    return [
        (
            type(group),
            {name: (type(layer), dict(layer), layer.annotations) for name, layer in layers.items()},
            dict(group.hlg.dependencies),
            group.low_level_optimizer,
            group.output_keys,
            group.postcompute,
        )
        for group in expr.operands
        for layers in [group.hlg.layers]
    ]


@pytest.mark.parametrize("optimize", [True, False])
def test_many_delayed_objects_make_the_expression_that_dask_makes_of_them(optimize: bool) -> None:
    objects = collections()
    ours = optimized_expression(objects, optimize)
    theirs = FinalizeCompute(collections_to_expr(objects, optimize)).optimize()
    assert ours is not None
    assert described(ours) == described(theirs)
    assert [type(each) for each in ours.operands] == [HLGExprGroup]
    assert ours.__dask_keys__() == theirs.__dask_keys__()
    assert ours.__dask_annotations__() == theirs.__dask_annotations__()
    assert dict(ours.__dask_graph__()) == dict(theirs.__dask_graph__())


def test_anything_else_is_left_to_dask() -> None:
    one = delayed(inc)(1)
    for others in (one, [one], [one, 1], [one, delayed(inc)], {one, delayed(inc)(2)}, []):
        assert optimized_expression(others, True) is None
    with dask.config.set({"optimization.tune.active": False}):
        assert optimized_expression([one, one], True) is None


def test_clients_get_the_same_futures_and_schedulers_the_same_tasks() -> None:
    states = []
    for switch in (True, False):

        @gen_cluster(**CLUSTER, nthreads=[("127.0.0.1", 1)], config={SWITCH: switch})
        async def run(c: Client, s: Scheduler, a: Worker) -> None:
            total = delayed(sum, pure=True)([delayed(inc, pure=True)(value) for value in range(3)])
            objects = [total, delayed(operator.neg, pure=True)(total), total]
            futures: Any = c.compute(objects, optimize_graph=False, retries=2)
            assert [future.key for future in futures] == [each.key for each in objects]
            assert await c.gather(futures) == [6, -6, 6]
            mixed: Any = c.compute((objects[0], 5))
            assert await mixed[0] == 6
            assert mixed[1] == 5
            assert await c.compute(objects, sync=True) == [6, -6, 6]
            states.append(
                {
                    ts.key: (
                        ts.retries,
                        (ts.priority or ())[2:],
                        {needed.key for needed in ts.dependencies},
                    )
                    for ts in s.tasks.values()
                }
            )

        run()
    ours, theirs = states
    assert ours == theirs
