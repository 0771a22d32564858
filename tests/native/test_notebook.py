"""HTML of this package's objects in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from backhaul import topology
from backhaul._notebook import table_html

if TYPE_CHECKING:
    from tests.native.conftest import Connected


def test_an_endpoint_is_a_table_of_its_lane_and_counts(lane: str, connected: Connected) -> None:
    with connected(lane) as (a, b):
        a.send(b"12345").wait(300)
        b.recv(bytearray(5)).wait(300)
        shown = b._repr_html_()  # type: ignore[attr-defined]
        assert f"{lane}: " in shown
        assert "1 message, 5 B" in shown
        assert "0 messages, 0 B" in shown
        assert a.peer_address in shown
    rows = ElementTree.fromstring(shown).findall(".//tr")
    assert len(rows) >= 7


def test_machines_are_pictures_and_plans_are_tables() -> None:
    machine = topology.discover()
    assert machine._repr_html_().startswith('<div style="max-width:100%')
    assert "<svg" in machine._repr_html_()
    assert machine.plan("n", n=1)._repr_html_().startswith("<pre>")


def test_what_others_say_is_no_html() -> None:
    assert "<script>" not in table_html("<script>", [("<script>", "<script>")])
