from __future__ import annotations

import pytest

from backhaul_bench.pair import ContenderFailed
from backhaul_bench.peers.perftest import parse_final_line

OUTPUT = """\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|    Stage     | # iterations | 99.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
Final:                 20000      0.095     0.080     0.080       95.97      95.97    12578510    12578510
"""  # noqa: E501


def test_the_figures_of_the_last_line_are_read() -> None:
    percentile_us, average_us, *_ = parse_final_line(OUTPUT)
    assert (percentile_us, average_us) == (0.095, 0.080)


def test_an_output_without_a_result_is_shown() -> None:
    with pytest.raises(ContenderFailed, match="connection refused"):
        parse_final_line("ucx_perftest: connection refused\n")
