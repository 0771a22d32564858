"""Functions and values that are replaced on one object of Dask: when, when not, how put back."""

from __future__ import annotations

from typing import Any

import pytest

from backhaul.dask.compat import (
    activation,
    exchange_patches,
    instance_patches,
    patching,
    process_patches,
    resource_patches,
)
from backhaul.dask.compat.digests import DIGESTS


class Holder:
    """Has things that may be replaced, as objects of Dask's have."""

    def __init__(self) -> None:
        self.own = "theirs"
        self.items = {"known": "theirs"}
        self.pages = ["status", "info"]

    def inherited(self) -> str:
        return "theirs"


#: As a patch names it
HOLDER = f"{__name__}:Holder"


class Heir(Holder):
    pass


def instance_patch(**arguments: Any) -> patching.InstancePatch:
    return patching.InstancePatch(
        shown="Holder.x", without="nothing works", **{"read": (), **arguments}
    )


def test_attributes_of_an_object_are_replaced_and_restored() -> None:
    holder = Holder()
    before = dict(vars(holder)), dict(holder.items), list(holder.pages)
    ours = [
        instance_patch(attribute="own").install(holder, "ours"),
        instance_patch(item="known").install(holder.items, "ours"),
        instance_patch(item="new").install(holder.items, "ours"),
        instance_patch(item=slice(None)).install(holder.pages, ["ours", "too"]),
        instance_patch(attribute="__class__").install(holder, Heir),
    ]
    assert holder.own == "ours"
    assert holder.items == {"known": "ours", "new": "ours"}
    assert holder.pages == ["ours", "too"]
    assert type(holder) is Heir
    assert [each and each.original for each in ours] == [
        *("theirs", "theirs", None),
        *(["status", "info"], Holder),
    ]
    assert all(each is not None and each.take_back() for each in ours)
    assert (dict(vars(holder)), dict(holder.items), list(holder.pages)) == before
    assert type(holder) is Holder


def test_inherited_attributes_are_inherited_again(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder()
    monkeypatch.setitem(DIGESTS, HOLDER, (patching.source_digest(Holder),))
    patch = instance_patch(attribute="inherited", read=(HOLDER,))
    replaced = patch.install(holder, lambda: "ours")
    assert holder.inherited() == "ours"
    assert replaced is not None
    assert replaced.original() == "theirs"
    assert replaced.take_back()
    assert "inherited" not in vars(holder)
    assert holder.inherited() == "theirs"


def test_a_replacement_by_another_package_stays_on_an_object() -> None:
    holder = Holder()
    replaced = instance_patch(item="known").install(holder.items, "ours")
    holder.items["known"] = "another's"
    assert replaced is not None
    assert not replaced.take_back()
    assert holder.items == {"known": "another's"}


def test_an_object_whose_source_is_not_known_is_left_alone_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DIGESTS, HOLDER, ("000000000000",))
    patch = instance_patch(attribute="own", read=(HOLDER,))
    for holder in (Holder(), Holder()):
        assert patch.install(holder, "ours") is None
        assert holder.own == "theirs"
    assert [each.getMessage() for each in caplog.records] == [
        "Backhaul leaves Holder.x as it is (nothing works): Holder differs from what was read of "
        f"distributed {activation.SUPPORTED}"
    ]


def test_an_object_on_which_others_replaced_the_function_is_left_alone() -> None:
    holder = Holder()
    patch = instance_patch(attribute="inherited", read=("Server.handle_stream",))
    assert not patch.fits(holder)


@pytest.mark.parametrize("patch", instance_patches.INSTANCE_PATCHES, ids=str)
def test_every_patch_of_single_objects_fits_this_release(patch: patching.InstancePatch) -> None:
    if any(name.startswith("distributed.dashboard") for name in patch.read):
        pytest.importorskip("bokeh")
    assert patching._refusal(patch.read, None) is None
    assert patch.read


def test_every_patch_of_single_objects_is_in_the_list() -> None:
    listed = {**vars(instance_patches), **vars(exchange_patches), **vars(resource_patches)}
    named = {each for each in listed.values() if isinstance(each, patching.InstancePatch)}
    named |= set(instance_patches.CLIENT_RESULTS.values())
    assert named == set(instance_patches.INSTANCE_PATCHES)
    assert all(patch.read for patch in process_patches.PATCHES)
