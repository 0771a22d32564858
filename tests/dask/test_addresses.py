"""Locations: every form that Dask gives, one spelling for each peer."""

from __future__ import annotations

import socket

import pytest
from distributed.comm import (
    get_address_host,
    get_address_host_port,
    get_local_address_for,
    parse_address,
    resolve_address,
)
from distributed.utils import get_ip

from backhaul.dask.comm.addresses import Location, contact_host, parse_location


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("", ("", 0)),
        (":0", ("", 0)),
        (":8786", ("", 8786)),
        ("host", ("host", 0)),
        ("host:0", ("host", 0)),
        ("host:8786", ("host", 8786)),
        ("10.0.0.1:8786", ("10.0.0.1", 8786)),
        ("[::1]", ("::1", 0)),
        ("[::1]:8786", ("::1", 8786)),
        ("[0:0::0:1]:8786", ("::1", 8786)),
        ("[FE80::1%eth0]:8786", ("fe80::1%eth0", 8786)),
        ("backhaul://host:8786", ("host", 8786)),
    ],
)
def test_each_form_of_a_location_is_understood(location: str, expected: tuple[str, int]) -> None:
    assert parse_location(location, default_port=0) == expected


@pytest.mark.parametrize("location", ["host", "[::1]", ""])
def test_a_missing_port_is_an_error_where_none_can_be_chosen(location: str) -> None:
    with pytest.raises(ValueError, match=r"missing port number in address .*host:port"):
        parse_location(location)


@pytest.mark.parametrize(
    "location", ["::1:123", "::1", "[::1", "[::1]8786", "[host]:1", "host:", "host:x", "host:65536"]
)
def test_a_malformed_location_is_named_in_the_error(location: str) -> None:
    with pytest.raises(ValueError, match="address") as caught:
        parse_location(location, default_port=0)
    assert repr(location) in str(caught.value)


@pytest.mark.parametrize("location", ["10.0.0.1:1", "[::1]:1", "host:1", ":1"])
def test_a_location_is_written_as_it_was_read(location: str) -> None:
    assert str(parse_location(location)) == location


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("backhaul://127.0.0.1:123", "backhaul://127.0.0.1:123"),
        ("backhaul://localhost:123", "backhaul://127.0.0.1:123"),
        ("backhaul://0.0.0.0:123", "backhaul://0.0.0.0:123"),
        ("backhaul://[0::1]:123", "backhaul://[::1]:123"),
        ("backhaul://[::]:123", "backhaul://[::]:123"),
    ],
)
def test_resolving_gives_the_one_spelling_and_changes_it_no_more(
    address: str, expected: str
) -> None:
    assert resolve_address(address) == expected
    assert resolve_address(expected) == expected


def test_an_unknown_name_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        resolve_address("backhaul://no-such-host.invalid:1")


def test_dask_can_ask_for_the_parts_of_an_address() -> None:
    assert parse_address("backhaul://10.0.0.1:80") == ("backhaul", "10.0.0.1:80")
    assert get_address_host("backhaul://10.0.0.1:80") == "10.0.0.1"
    assert get_address_host("backhaul://[::1]") == "::1"
    assert get_address_host_port("backhaul://[::1]:80") == ("::1", 80)


def test_the_local_address_towards_a_peer_is_on_the_same_network() -> None:
    assert get_local_address_for("backhaul://127.0.0.1:80") == "backhaul://127.0.0.1"
    assert get_local_address_for("backhaul://8.8.8.8:80") == f"backhaul://{get_ip()}"
    if socket.has_ipv6:
        assert get_local_address_for("backhaul://[::1]:80") == "backhaul://[::1]"


def test_a_listener_on_one_interface_advertises_that() -> None:
    assert contact_host("10.0.0.1", default_host="a", contact="b", interface="lo") == "10.0.0.1"


def test_a_listener_on_every_interface_prefers_the_users_address_to_dasks() -> None:
    assert contact_host("0.0.0.0", default_host="a", contact="b", interface="lo") == "b"
    assert contact_host("0.0.0.0", default_host="a", contact=None, interface="lo") == "127.0.0.1"
    assert contact_host("0.0.0.0", default_host="a", contact=None, interface=None) == "a"
    assert contact_host("0.0.0.0", default_host=None, contact=None, interface=None) == get_ip()


def test_an_unknown_interface_is_named_with_the_ones_there_are() -> None:
    with pytest.raises(ValueError, match=r"no-such-interface.*lo"):
        contact_host("::", default_host=None, contact=None, interface="no-such-interface")


def test_a_location_puts_brackets_around_ipv6() -> None:
    assert str(Location("::1", 80)) == "[::1]:80"
