"""Which rows of bronze come next, without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spark.silver.progress import Offsets, Plan, next_plan, reached, store_plan, stored_plan
from spark.silver.rules import DEFAULT, read_rules

NEW = ("q", -1, {})


def kept(batch: int, rows: int = 10, query: str = "feedbeef", **ends: int) -> dict[str, Any]:
    return {"query": query, "batch": batch, "rows": rows, "end": offsets(**ends)}


def offsets(**ends: int) -> Offsets:
    return {node: {"e": 1, "o": end} for node, end in ends.items()}


def test_nothing_new() -> None:
    assert next_plan(NEW, [], 100) is None
    assert next_plan(("q", 3, offsets(n=10)), [kept(0, n=10)], 100) is None


def test_whole_batches_up_to_a_bound_and_one_at_least() -> None:
    bronze = [kept(n, n=10 * (n + 1)) for n in range(5)]
    plan = next_plan(NEW, bronze, 25)
    assert plan == Plan("q", 0, {}, offsets(n=20), ("feedbeef-0", "feedbeef-1"))
    after = next_plan(("q", 0, offsets(n=20)), bronze, 5)
    assert after is not None and after.batches == ("feedbeef-2",)
    assert (after.number, after.end) == (1, offsets(n=30))


def test_batches_are_unknown_where_some_may_be_forgotten() -> None:
    bronze = [kept(n, n=10 * (n + 1)) for n in (7, 8)]  # 0 to 6 are not kept any more
    plan = next_plan(("q", 0, offsets(n=20)), bronze, 100)
    assert plan is not None and plan.batches is None and plan.end == offsets(n=90)
    plan = next_plan(("q", 0, offsets(n=80)), bronze, 100)
    assert plan is not None and plan.batches == ("feedbeef-8",)


def test_a_new_query_of_ingest_goes_on() -> None:
    bronze = [kept(0, n=10), kept(0, query="0ther0", n=20)]
    plan = next_plan(("q", 4, offsets(n=10)), bronze, 100)
    assert plan is not None and plan.batches == ("0ther0-0",) and plan.number == 5


def test_the_condition_takes_each_row_once() -> None:
    places = [{"e": 1, "o": 5}, {"e": 1, "o": 9}, {"e": 3, "o": 2}, {"e": 3, "o": 4}]
    rows = [(node, epoch, offset) for node in "nm" for epoch in (1, 2, 3) for offset in range(10)]
    taken: list[tuple[str, int, int]] = []
    for start, end in zip([None, *places], places, strict=False):
        before: Offsets = {} if start is None else {"n": start}
        where = Plan("q", 0, before, {"n": end}, None).condition()
        python = where.replace("=", "==").replace("<==", "<=").replace(">==", ">=").replace("AND", "and")
        python = python.replace("OR", "or")
        for row in rows:
            names = dict(zip(("node", "epoch", "offset"), row, strict=True))
            taken += [row] if eval(python, names) else []
    assert len(taken) == len(set(taken))
    assert set(taken) == {row for row in rows if row[0] == "n" and row[1:] < (3, 4)}


def test_what_is_done_stands_in_the_newest() -> None:
    assert reached([kept(0, n=1), kept(2, n=3), kept(1, n=2)]) == ("feedbeef", 2, offsets(n=3))
    query, last, end = reached([])
    assert len(query) == 32 and (last, end) == (-1, {})


def test_a_plan_that_was_begun_is_kept_and_an_old_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "_plan.json"
    done = ("q", 1, offsets(n=3))
    assert stored_plan(path, done) is None
    plan, rules = Plan("q", 2, offsets(n=3), offsets(n=9), ("b-1",)), read_rules(DEFAULT)
    store_plan(path, plan, rules)
    assert stored_plan(path, done) == (plan, rules)
    assert stored_plan(path, ("q", 2, offsets(n=9))) is None
    assert stored_plan(path, ("other", 1, offsets(n=3))) is None
    for broken in ("{", "[]", json.dumps(plan._asdict())):
        path.write_text(broken)
        assert stored_plan(path, done) is None
