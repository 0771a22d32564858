"""The 22 queries of TPC-H on ``dask.dataframe``, from the SQL in `benches.python.tpch.sql`.

A query takes the tables, and returns a collection and the order of its rows. The rows of the
collection, sorted by these columns and cut to so many rows, are the answer. Columns have the names
of the SQL, and its order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import dask.dataframe as dd
import pandas as pd

__all__ = ["QUERIES", "Answer", "Tables"]

Frame = Any


@dataclass(frozen=True)
class Tables:
    """The tables, which are read when they are used.

    Parameters
    ----------
    folder : str
        Has a folder of Parquet files for each table.
    scale : float
        Scale of the tables.
    """

    folder: str
    scale: float

    def __getattr__(self, name: str) -> Frame:
        return dd.read_parquet(f"{self.folder}/{name}")


class Answer(NamedTuple):
    """The answer of a query.

    Parameters
    ----------
    rows : collection
        The rows, or a number.
    columns : sequence of str
        Columns of the answer.
    by : sequence of str
        Columns to sort by; a minus before the name sorts downwards.
    limit : int or None
        Rows of the answer at most.
    """

    rows: Any
    columns: Sequence[str]
    by: Sequence[str] = ()
    limit: int | None = None

    def ordered(self, rows: Any) -> pd.DataFrame:
        """Order and cut the computed rows."""
        if not isinstance(rows, pd.DataFrame):
            return pd.DataFrame({self.columns[0]: [rows]})
        if self.by:
            names = [name.removeprefix("-") for name in self.by]
            rows = rows.sort_values(names, ascending=[name in self.by for name in names])
        return rows[list(self.columns)].head(self.limit or len(rows)).reset_index(drop=True)


def _date(text: str) -> pd.Timestamp:
    return pd.Timestamp(text)


def _within(dates: Frame, first: str, end: str) -> Frame:
    """Tell which dates are in ``[first, end)``."""
    return (dates >= _date(first)) & (dates < _date(end))


def _revenue(lines: Frame) -> Frame:
    return lines.l_extendedprice * (1 - lines.l_discount)


def _join(left: Frame, right: Frame, left_on: str, right_on: str, **options: Any) -> Frame:
    return left.merge(right, left_on=left_on, right_on=right_on, **options)


def _nations_of(tables: Tables, region: str) -> Frame:
    regions = tables.region
    found = _join(tables.nation, regions[regions.r_name == region], "n_regionkey", "r_regionkey")
    return found[["n_nationkey", "n_name"]]


def _q1(tables: Tables) -> Answer:
    lines = tables.lineitem
    lines = lines[lines.l_shipdate <= _date("1998-09-02")]
    discounted = _revenue(lines)
    lines = lines.assign(disc_price=discounted, charge=discounted * (1 + lines.l_tax))
    keys = ["l_returnflag", "l_linestatus"]
    rows = lines.groupby(keys).agg(
        sum_qty=("l_quantity", "sum"),
        sum_base_price=("l_extendedprice", "sum"),
        sum_disc_price=("disc_price", "sum"),
        sum_charge=("charge", "sum"),
        avg_qty=("l_quantity", "mean"),
        avg_price=("l_extendedprice", "mean"),
        avg_disc=("l_discount", "mean"),
        count_order=("l_quantity", "size"),
    )
    sums = ["sum_qty", "sum_base_price", "sum_disc_price", "sum_charge"]
    means = ["avg_qty", "avg_price", "avg_disc"]
    return Answer(rows.reset_index(), [*keys, *sums, *means, "count_order"], keys)


def _q2(tables: Tables) -> Answer:
    parts = tables.part
    parts = parts[(parts.p_size == 15) & parts.p_type.str.endswith("BRASS")]
    suppliers = _join(tables.supplier, _nations_of(tables, "EUROPE"), "s_nationkey", "n_nationkey")
    offers = _join(tables.partsupp, suppliers, "ps_suppkey", "s_suppkey")
    offers = _join(parts[["p_partkey", "p_mfgr"]], offers, "p_partkey", "ps_partkey")
    cheapest = offers.groupby("p_partkey").ps_supplycost.min().reset_index()
    rows = offers.merge(cheapest, on=["p_partkey", "ps_supplycost"])
    columns = ["s_acctbal", "s_name", "n_name", "p_partkey", "p_mfgr", "s_address", "s_phone"]
    by = ["-s_acctbal", "n_name", "s_name", "p_partkey"]
    return Answer(rows, [*columns, "s_comment"], by, 100)


def _q3(tables: Tables) -> Answer:
    customers, orders, lines = tables.customer, tables.orders, tables.lineitem
    customers = customers[customers.c_mktsegment == "BUILDING"][["c_custkey"]]
    orders = orders[orders.o_orderdate < _date("1995-03-15")]
    lines = lines[lines.l_shipdate > _date("1995-03-15")]
    orders = _join(orders, customers, "o_custkey", "c_custkey")
    found = _join(lines, orders, "l_orderkey", "o_orderkey")
    found = found.assign(revenue=_revenue(found))
    keys = ["l_orderkey", "o_orderdate", "o_shippriority"]
    rows = found.groupby(keys).revenue.sum().reset_index()
    columns = ["l_orderkey", "revenue", "o_orderdate", "o_shippriority"]
    return Answer(rows, columns, ["-revenue", "o_orderdate"], 10)


def _q4(tables: Tables) -> Answer:
    orders, lines = tables.orders, tables.lineitem
    orders = orders[_within(orders.o_orderdate, "1993-07-01", "1993-10-01")]
    late = lines[lines.l_commitdate < lines.l_receiptdate][["l_orderkey"]]
    found = _join(orders, late, "o_orderkey", "l_orderkey", how="leftsemi")
    rows = found.groupby("o_orderpriority").size().rename("order_count").reset_index()
    return Answer(rows, ["o_orderpriority", "order_count"], ["o_orderpriority"])


def _q5(tables: Tables) -> Answer:
    orders = tables.orders
    orders = orders[_within(orders.o_orderdate, "1994-01-01", "1995-01-01")]
    suppliers = _join(tables.supplier, _nations_of(tables, "ASIA"), "s_nationkey", "n_nationkey")
    orders = _join(
        orders[["o_orderkey", "o_custkey"]],
        tables.customer[["c_custkey", "c_nationkey"]],
        "o_custkey",
        "c_custkey",
    )
    found = _join(tables.lineitem, orders, "l_orderkey", "o_orderkey")
    found = found.merge(
        suppliers[["s_suppkey", "s_nationkey", "n_name"]],
        left_on=["l_suppkey", "c_nationkey"],
        right_on=["s_suppkey", "s_nationkey"],
    )
    found = found.assign(revenue=_revenue(found))
    rows = found.groupby("n_name").revenue.sum().reset_index()
    return Answer(rows, ["n_name", "revenue"], ["-revenue"])


def _q6(tables: Tables) -> Answer:
    lines = tables.lineitem
    lines = lines[
        _within(lines.l_shipdate, "1994-01-01", "1995-01-01")
        & (lines.l_discount >= 0.05)
        & (lines.l_discount <= 0.07)
        & (lines.l_quantity < 24)
    ]
    return Answer((lines.l_extendedprice * lines.l_discount).sum(), ["revenue"])


def _q7(tables: Tables) -> Answer:
    nations = tables.nation[["n_nationkey", "n_name"]]
    nations = nations[nations.n_name.isin(["FRANCE", "GERMANY"])]
    suppliers = _join(tables.supplier, nations, "s_nationkey", "n_nationkey")
    suppliers = suppliers[["s_suppkey", "n_name"]].rename(columns={"n_name": "supp_nation"})
    customers = _join(tables.customer, nations, "c_nationkey", "n_nationkey")
    customers = customers[["c_custkey", "n_name"]].rename(columns={"n_name": "cust_nation"})
    orders = _join(tables.orders, customers, "o_custkey", "c_custkey")
    lines = tables.lineitem
    lines = lines[_within(lines.l_shipdate, "1995-01-01", "1997-01-01")]
    lines = _join(lines, suppliers, "l_suppkey", "s_suppkey")
    found = _join(lines, orders[["o_orderkey", "cust_nation"]], "l_orderkey", "o_orderkey")
    found = found[found.supp_nation != found.cust_nation]
    found = found.assign(l_year=found.l_shipdate.dt.year, volume=_revenue(found))
    keys = ["supp_nation", "cust_nation", "l_year"]
    rows = found.groupby(keys).volume.sum().rename("revenue").reset_index()
    return Answer(rows, [*keys, "revenue"], keys)


def _q8(tables: Tables) -> Answer:
    parts, orders = tables.part, tables.orders
    parts = parts[parts.p_type == "ECONOMY ANODIZED STEEL"][["p_partkey"]]
    orders = orders[_within(orders.o_orderdate, "1995-01-01", "1997-01-01")]
    customers = _join(tables.customer, _nations_of(tables, "AMERICA"), "c_nationkey", "n_nationkey")
    orders = _join(orders, customers[["c_custkey"]], "o_custkey", "c_custkey")
    lines = _join(tables.lineitem, parts, "l_partkey", "p_partkey")
    found = _join(lines, orders[["o_orderkey", "o_orderdate"]], "l_orderkey", "o_orderkey")
    suppliers = _join(tables.supplier, tables.nation, "s_nationkey", "n_nationkey")
    found = _join(found, suppliers[["s_suppkey", "n_name"]], "l_suppkey", "s_suppkey")
    volume = _revenue(found)
    found = found.assign(
        o_year=found.o_orderdate.dt.year,
        volume=volume,
        of_nation=volume.where(found.n_name == "BRAZIL", 0.0),
    )
    rows = found.groupby("o_year")[["of_nation", "volume"]].sum().reset_index()
    rows = rows.assign(mkt_share=rows.of_nation / rows.volume)
    return Answer(rows, ["o_year", "mkt_share"], ["o_year"])


def _q9(tables: Tables) -> Answer:
    parts = tables.part
    parts = parts[parts.p_name.str.contains("green", regex=False)][["p_partkey"]]
    suppliers = _join(tables.supplier, tables.nation, "s_nationkey", "n_nationkey")
    lines = _join(tables.lineitem, parts, "l_partkey", "p_partkey")
    offers = tables.partsupp[["ps_partkey", "ps_suppkey", "ps_supplycost"]]
    lines = lines.merge(
        offers, left_on=["l_partkey", "l_suppkey"], right_on=["ps_partkey", "ps_suppkey"]
    )
    lines = _join(lines, suppliers[["s_suppkey", "n_name"]], "l_suppkey", "s_suppkey")
    orders = tables.orders[["o_orderkey", "o_orderdate"]]
    found = _join(lines, orders, "l_orderkey", "o_orderkey")
    found = found.assign(
        nation=found.n_name,
        o_year=found.o_orderdate.dt.year,
        amount=_revenue(found) - found.ps_supplycost * found.l_quantity,
    )
    rows = found.groupby(["nation", "o_year"]).amount.sum().rename("sum_profit").reset_index()
    return Answer(rows, ["nation", "o_year", "sum_profit"], ["nation", "-o_year"])


def _q10(tables: Tables) -> Answer:
    orders, lines = tables.orders, tables.lineitem
    orders = orders[_within(orders.o_orderdate, "1993-10-01", "1994-01-01")]
    lines = lines[lines.l_returnflag == "R"]
    found = _join(lines, orders[["o_orderkey", "o_custkey"]], "l_orderkey", "o_orderkey")
    found = found.assign(revenue=_revenue(found))
    revenues = found.groupby("o_custkey").revenue.sum().reset_index()
    customers = _join(tables.customer, tables.nation, "c_nationkey", "n_nationkey")
    rows = _join(customers, revenues, "c_custkey", "o_custkey")
    columns = ["c_custkey", "c_name", "revenue", "c_acctbal", "n_name", "c_address", "c_phone"]
    return Answer(rows, [*columns, "c_comment"], ["-revenue"], 20)


def _q11(tables: Tables) -> Answer:
    nations = tables.nation
    nations = nations[nations.n_name == "GERMANY"][["n_nationkey"]]
    suppliers = _join(tables.supplier, nations, "s_nationkey", "n_nationkey")
    offers = _join(tables.partsupp, suppliers[["s_suppkey"]], "ps_suppkey", "s_suppkey")
    offers = offers.assign(value=offers.ps_supplycost * offers.ps_availqty)
    values = offers.groupby("ps_partkey").value.sum().reset_index()
    rows = values[values.value > offers.value.sum() * (0.0001 / tables.scale)]
    return Answer(rows, ["ps_partkey", "value"], ["-value"])


def _q12(tables: Tables) -> Answer:
    lines = tables.lineitem
    lines = lines[
        lines.l_shipmode.isin(["MAIL", "SHIP"])
        & (lines.l_commitdate < lines.l_receiptdate)
        & (lines.l_shipdate < lines.l_commitdate)
        & _within(lines.l_receiptdate, "1994-01-01", "1995-01-01")
    ]
    orders = tables.orders[["o_orderkey", "o_orderpriority"]]
    found = _join(lines, orders, "l_orderkey", "o_orderkey")
    is_high = found.o_orderpriority.isin(["1-URGENT", "2-HIGH"])
    found = found.assign(high_line_count=is_high.astype(int), low_line_count=(~is_high).astype(int))
    counts = ["high_line_count", "low_line_count"]
    rows = found.groupby("l_shipmode")[counts].sum().reset_index()
    return Answer(rows, ["l_shipmode", *counts], ["l_shipmode"])


def _q13(tables: Tables) -> Answer:
    orders = tables.orders
    orders = orders[~orders.o_comment.str.contains("special.*requests")]
    found = tables.customer[["c_custkey"]].merge(
        orders[["o_orderkey", "o_custkey"]], left_on="c_custkey", right_on="o_custkey", how="left"
    )
    counts = found.groupby("c_custkey").o_orderkey.count().rename("c_count").reset_index()
    rows = counts.groupby("c_count").size().rename("custdist").reset_index()
    return Answer(rows, ["c_count", "custdist"], ["-custdist", "-c_count"])


def _q14(tables: Tables) -> Answer:
    lines = tables.lineitem
    lines = lines[_within(lines.l_shipdate, "1995-09-01", "1995-10-01")]
    found = _join(lines, tables.part[["p_partkey", "p_type"]], "l_partkey", "p_partkey")
    revenue = _revenue(found)
    of_promotions = revenue.where(found.p_type.str.startswith("PROMO"), 0.0)
    return Answer(100.0 * of_promotions.sum() / revenue.sum(), ["promo_revenue"])


def _q15(tables: Tables) -> Answer:
    lines = tables.lineitem
    lines = lines[_within(lines.l_shipdate, "1996-01-01", "1996-04-01")]
    lines = lines.assign(total_revenue=_revenue(lines))
    revenues = lines.groupby("l_suppkey").total_revenue.sum().reset_index()
    best = revenues[revenues.total_revenue > revenues.total_revenue.max() * (1 - 1e-12)]
    rows = _join(tables.supplier, best, "s_suppkey", "l_suppkey")
    columns = ["s_suppkey", "s_name", "s_address", "s_phone", "total_revenue"]
    return Answer(rows, columns, ["s_suppkey"])


def _q16(tables: Tables) -> Answer:
    parts, suppliers = tables.part, tables.supplier
    parts = parts[
        (parts.p_brand != "Brand#45")
        & ~parts.p_type.str.startswith("MEDIUM POLISHED")
        & parts.p_size.isin([49, 14, 23, 45, 19, 3, 36, 9])
    ]
    blamed = suppliers[suppliers.s_comment.str.contains("Customer.*Complaints")][["s_suppkey"]]
    offers = tables.partsupp[["ps_partkey", "ps_suppkey"]]
    offers = _join(offers, blamed, "ps_suppkey", "s_suppkey", how="left")
    offers = offers[offers.s_suppkey.isna()]
    keys = ["p_brand", "p_type", "p_size"]
    found = _join(offers, parts[["p_partkey", *keys]], "ps_partkey", "p_partkey")
    # The supplier of a part is in one row.
    suppliers_of = found[[*keys, "ps_suppkey"]].drop_duplicates()
    rows = suppliers_of.groupby(keys).size().rename("supplier_cnt").reset_index()
    return Answer(rows, [*keys, "supplier_cnt"], ["-supplier_cnt", *keys])


def _q17(tables: Tables) -> Answer:
    parts = tables.part
    parts = parts[(parts.p_brand == "Brand#23") & (parts.p_container == "MED BOX")]
    lines = tables.lineitem[["l_partkey", "l_quantity", "l_extendedprice"]]
    found = _join(lines, parts[["p_partkey"]], "l_partkey", "p_partkey")
    means = found.groupby("p_partkey").l_quantity.mean().rename("mean").reset_index()
    found = found.merge(means, on="p_partkey")
    small = found[found.l_quantity < 0.2 * found["mean"]]
    return Answer(small.l_extendedprice.sum(min_count=1) / 7.0, ["avg_yearly"])


def _q18(tables: Tables) -> Answer:
    quantities = tables.lineitem.groupby("l_orderkey").l_quantity.sum()
    quantities = quantities.rename("sum_qty").reset_index()
    large = quantities[quantities.sum_qty > 300]
    orders = _join(tables.orders, large, "o_orderkey", "l_orderkey")
    customers = tables.customer[["c_custkey", "c_name"]]
    rows = _join(orders, customers, "o_custkey", "c_custkey")
    columns = ["c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "sum_qty"]
    return Answer(rows, columns, ["-o_totalprice", "o_orderdate"], 100)


#: Brand, containers, quantities and largest size that the nineteenth query asks for
_ASKED_FOR: Final = (
    ("Brand#12", ("SM CASE", "SM BOX", "SM PACK", "SM PKG"), (1, 11), 5),
    ("Brand#23", ("MED BAG", "MED BOX", "MED PKG", "MED PACK"), (10, 20), 10),
    ("Brand#34", ("LG CASE", "LG BOX", "LG PACK", "LG PKG"), (20, 30), 15),
)


def _q19(tables: Tables) -> Answer:
    lines = tables.lineitem
    lines = lines[
        lines.l_shipmode.isin(["AIR", "AIR REG"]) & (lines.l_shipinstruct == "DELIVER IN PERSON")
    ]
    parts = tables.part[["p_partkey", "p_brand", "p_container", "p_size"]]
    found = _join(lines, parts, "l_partkey", "p_partkey")
    asked_for = [
        (found.p_brand == brand)
        & found.p_container.isin(list(containers))
        & (found.l_quantity >= least)
        & (found.l_quantity <= most)
        & (found.p_size >= 1)
        & (found.p_size <= size)
        for brand, containers, (least, most), size in _ASKED_FOR
    ]
    found = found[functools.reduce(operator.or_, asked_for)]
    return Answer(_revenue(found).sum(), ["revenue"])


def _q20(tables: Tables) -> Answer:
    lines, parts, nations = tables.lineitem, tables.part, tables.nation
    lines = lines[_within(lines.l_shipdate, "1994-01-01", "1995-01-01")]
    sold = lines.groupby(["l_partkey", "l_suppkey"]).l_quantity.sum().reset_index()
    parts = parts[parts.p_name.str.startswith("forest")][["p_partkey"]]
    offers = _join(tables.partsupp, parts, "ps_partkey", "p_partkey")
    offers = offers.merge(
        sold, left_on=["ps_partkey", "ps_suppkey"], right_on=["l_partkey", "l_suppkey"]
    )
    offers = offers[offers.ps_availqty > 0.5 * offers.l_quantity][["ps_suppkey"]]
    suppliers = _join(
        tables.supplier, nations[nations.n_name == "CANADA"], "s_nationkey", "n_nationkey"
    )
    rows = _join(suppliers, offers, "s_suppkey", "ps_suppkey", how="leftsemi")
    return Answer(rows, ["s_name", "s_address"], ["s_name"])


def _q21(tables: Tables) -> Answer:
    lines, orders, nations = tables.lineitem, tables.orders, tables.nation
    late = lines[lines.l_receiptdate > lines.l_commitdate][["l_orderkey", "l_suppkey"]]
    # Orders of several suppliers, of which one was late
    pairs = lines[["l_orderkey", "l_suppkey"]].drop_duplicates()
    suppliers_of = pairs.groupby("l_orderkey").size().rename("suppliers").reset_index()
    late_of = late.drop_duplicates().groupby("l_orderkey").size().rename("late").reset_index()
    found = suppliers_of[suppliers_of.suppliers > 1].merge(
        late_of[late_of.late == 1], on="l_orderkey"
    )
    found = late.merge(found, on="l_orderkey")
    orders = orders[orders.o_orderstatus == "F"][["o_orderkey"]]
    found = _join(found, orders, "l_orderkey", "o_orderkey")
    suppliers = _join(
        tables.supplier, nations[nations.n_name == "SAUDI ARABIA"], "s_nationkey", "n_nationkey"
    )
    found = _join(found, suppliers[["s_suppkey", "s_name"]], "l_suppkey", "s_suppkey")
    rows = found.groupby("s_name").size().rename("numwait").reset_index()
    return Answer(rows, ["s_name", "numwait"], ["-numwait", "s_name"], 100)


def _q22(tables: Tables) -> Answer:
    customers = tables.customer[["c_custkey", "c_phone", "c_acctbal"]]
    customers = customers.assign(cntrycode=customers.c_phone.str[:2])
    codes = ["13", "31", "23", "29", "30", "18", "17"]
    customers = customers[customers.cntrycode.isin(codes)]
    mean = customers[customers.c_acctbal > 0.0].c_acctbal.mean()
    customers = customers[customers.c_acctbal > mean]
    orders = tables.orders[["o_custkey"]].drop_duplicates()
    found = _join(customers, orders, "c_custkey", "o_custkey", how="left")
    found = found[found.o_custkey.isna()]
    rows = found.groupby("cntrycode").agg(
        numcust=("c_acctbal", "size"), totacctbal=("c_acctbal", "sum")
    )
    return Answer(rows.reset_index(), ["cntrycode", "numcust", "totacctbal"], ["cntrycode"])


#: By number
QUERIES: Final[dict[int, Callable[[Tables], Answer]]] = {
    number: globals()[f"_q{number}"] for number in range(1, 23)
}
