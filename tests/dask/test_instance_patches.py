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


def instance_patch(*slots: str, **arguments: Any) -> patching.InstancePatch:
    return patching.InstancePatch(
        shown="Holder", without="nothing works", slots=slots, **{"read": (), **arguments}
    )


def test_attributes_of_an_object_are_replaced_and_restored() -> None:
    holder = Holder()
    before = dict(vars(holder)), dict(holder.items), list(holder.pages)
    ours = {
        "own": "ours",
        "items[known]": "ours",
        "items[new]": "ours",
        "pages[:]": ["ours", "too"],
        "__class__": Heir,
    }
    replaced = instance_patch(*ours).install(holder, ours)
    assert holder.own == "ours"
    assert holder.items == {"known": "ours", "new": "ours"}
    assert holder.pages == ["ours", "too"]
    assert type(holder) is Heir
    assert {slot: each.original for slot, each in replaced.items()} == {
        "own": "theirs",
        "items[known]": "theirs",
        "items[new]": None,
        "pages[:]": ["status", "info"],
        "__class__": Holder,
    }
    assert all(each.take_back() for each in replaced.values())
    assert (dict(vars(holder)), dict(holder.items), list(holder.pages)) == before
    assert type(holder) is Holder


def test_a_slot_of_an_object_that_the_owner_refers_to_is_replaced_and_restored() -> None:
    holder = Holder()
    owner = {"kept": [holder], "one": holder}
    patch = instance_patch("[one].own", "[one].items[known]")
    replaced = patch.install(owner, {"[one].own": "ours", "[one].items[known]": "ours"})
    assert (holder.own, holder.items) == ("ours", {"known": "ours"})
    assert all(each.take_back() for each in replaced.values())
    assert (holder.own, holder.items) == ("theirs", {"known": "theirs"})


def test_a_part_of_the_slots_is_replaced_if_the_feature_asks_for_no_more() -> None:
    holder = Holder()
    patch = instance_patch("own", "items[known]")
    assert list(patch.install(holder, {"own": "ours"})) == ["own"]
    assert (holder.own, holder.items) == ("ours", {"known": "theirs"})


@pytest.mark.parametrize("missing", ["absent", "items[absent].own", "absent[known]"])
def test_nothing_is_replaced_if_an_object_on_the_way_to_one_slot_is_missing(
    missing: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patching, "_named_in_log", set())
    holder = Holder()
    patch = instance_patch("own", missing)
    assert patch.install(holder, {"own": "ours", missing: "ours"}) == {}
    assert holder.own == "theirs"
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Backhaul leaves Holder.own and 1 more as it is (nothing works): "
    )


def test_inherited_attributes_are_inherited_again(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Holder()
    monkeypatch.setitem(DIGESTS, HOLDER, (patching.source_digest(Holder),))
    patch = instance_patch("inherited", read=(HOLDER,))
    replaced = patch.install(holder, {"inherited": lambda: "ours"})["inherited"]
    assert holder.inherited() == "ours"
    assert replaced.original() == "theirs"
    assert replaced.take_back()
    assert "inherited" not in vars(holder)
    assert holder.inherited() == "theirs"


def test_a_replacement_by_another_package_stays_on_an_object() -> None:
    holder = Holder()
    replaced = instance_patch("items[known]").install(holder, {"items[known]": "ours"})
    holder.items["known"] = "another's"
    assert not replaced["items[known]"].take_back()
    assert holder.items == {"known": "another's"}


def test_an_object_whose_source_is_not_known_is_left_alone_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DIGESTS, HOLDER, ("000000000000",))
    patch = instance_patch("own", read=(HOLDER,))
    for holder in (Holder(), Holder()):
        assert patch.install(holder, {"own": "ours"}) == {}
        assert holder.own == "theirs"
    assert [each.getMessage() for each in caplog.records] == [
        "Backhaul leaves Holder.own as it is (nothing works): Holder differs from what was read of "
        f"distributed {activation.SUPPORTED}"
    ]


def test_an_object_on_which_others_replaced_one_function_is_left_alone() -> None:
    holder = Holder()
    patch = instance_patch("own", "inherited", read=("Server.handle_stream",))
    assert patch.fits_on(holder, "own")
    assert not patch.fits_on(holder)
    assert patch.install(holder, {"own": "ours", "inherited": "ours"}) == {}
    assert holder.own == "theirs"


@pytest.mark.parametrize(
    "patch", [*instance_patches.INSTANCE_PATCHES, *instance_patches.REQUIREMENTS], ids=str
)
def test_every_patch_of_single_objects_fits_this_release(patch: patching.Requirement) -> None:
    if any(name.startswith("distributed.dashboard") for name in patch.read):
        pytest.importorskip("bokeh")
    assert patching._refusal(patch.read) is None
    assert patch.read


def test_every_patch_of_single_objects_is_in_the_list() -> None:
    listed = {**vars(instance_patches), **vars(exchange_patches), **vars(resource_patches)}
    named = {each for each in listed.values() if isinstance(each, patching.Requirement)}
    assert named == {*instance_patches.INSTANCE_PATCHES, *instance_patches.REQUIREMENTS}
    assert all(patch.slots for patch in instance_patches.INSTANCE_PATCHES)
    assert all(patch.read for patch in process_patches.PATCHES)


def test_there_are_few_kinds_of_replacements() -> None:
    """A feature has one entry for each object, so that a reader sees its replacements together."""
    assert len(instance_patches.INSTANCE_PATCHES) <= 30
