"""SessionManager: all sessions by ClientID, and what is due when."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.session import manager as module
from broker.session.manager import ALPHABET, Deadlines, SessionManager
from broker.session.session import Session
from broker.session.terms import NEVER, PendingWill
from broker.topic.subscription import Subscription
from tests.session.make import Bench, message


def manager_with(*client_ids: str) -> SessionManager:
    manager = SessionManager(Bench().terms())
    for client_id in client_ids:
        manager.create(client_id)
    return manager


def end_at(manager: SessionManager, client_id: str, when: float) -> Session:
    session = manager.get(client_id)
    assert session is not None
    session.ends_at = when
    manager.note_deadlines(session)
    return session


def will_at(manager: SessionManager, client_id: str, when: float) -> Session:
    session = manager.get(client_id)
    assert session is not None
    session.will, session.will_due = PendingWill(message(b"will")), when
    manager.note_deadlines(session)
    return session


def names(sessions: list[Session]) -> list[str]:
    return [session.client_id for session in sessions]


# ---- by ClientID


def test_get_or_create() -> None:
    manager = manager_with()
    assert manager.get("a") is None
    made, existed = manager.get_or_create("a")
    assert (existed, made.client_id, len(manager)) == (False, "a", 1)
    assert manager.get_or_create("a") == (made, True)
    assert manager.get("a") is made and manager.get("A") is None, "ClientIDs are compared as they are"


def test_create_takes_the_place_of_what_was_there() -> None:
    manager = manager_with("a")
    old = manager.get("a")
    new = manager.create("a")
    assert new is not old and manager.get("a") is new and len(manager) == 1


def test_delete_is_by_identity() -> None:
    manager = manager_with("a", "b")
    old = manager.get("a")
    assert old is not None
    new = manager.create("a")
    assert manager.delete(old) is False, "a late end of the old one leaves its successor alone"
    assert manager.get("a") is new
    assert (manager.delete(new), manager.delete(new)) == (True, False)
    assert [session.client_id for session in manager] == ["b"]


def test_it_may_change_while_it_is_walked() -> None:
    manager = manager_with(*"abc")
    for session in manager:
        manager.delete(session)
        manager.create(session.client_id + "'")
    assert [session.client_id for session in manager] == ["a'", "b'", "c'"]


# ---- the end of sessions


def test_clean_expired_gives_those_that_are_due_once_and_full() -> None:
    manager = manager_with(*"abc")
    for client_id, when in (("a", 30), ("b", 10), ("c", 20)):
        session = end_at(manager, client_id, when)
        session.subscribe(Subscription("t"))
    assert manager.clean_expired(9.999) == []
    due = manager.clean_expired(20)
    assert names(due) == ["b", "c"], "in the order of their deadlines; the exact time counts"
    assert all(session.subscriptions for session in due)
    assert manager.clean_expired(20) == []
    assert names(list(manager)) == ["a", "b", "c"], "they stay until they are deleted"


@pytest.mark.parametrize(
    ("moves", "expired_at_15"),
    [
        ([10, 20], False),  # later
        ([20, 10], True),  # earlier
        ([10, NEVER], False),  # connected again
        ([10, NEVER, 12], True),
        ([10, NEVER, 16], False),
        ([10, 10, 10], True),
        ([20, 10, 12, 11], True),
    ],
)
def test_the_last_move_of_a_deadline_decides(moves: list[float], expired_at_15: bool) -> None:
    manager = manager_with("a", "b")
    for when in moves:
        end_at(manager, "a", when)
    expired = manager.clean_expired(15)
    assert names(expired) == (["a"] if expired_at_15 else [])
    for session in expired:
        manager.delete(session)
    assert names(manager.clean_expired(15)) == []
    last = moves[-1]
    assert names(manager.clean_expired(1000)) == (["a"] if not expired_at_15 and last != NEVER else [])


def test_a_session_that_was_deleted_or_replaced_does_not_expire() -> None:
    manager = manager_with("a", "b")
    gone = end_at(manager, "a", 10)
    manager.delete(gone)
    end_at(manager, "b", 10)
    manager.create("b")
    assert manager.clean_expired(100) == []
    assert names(list(manager)) == ["b"]


# ---- wills


def test_due_wills_are_given_once() -> None:
    manager = manager_with(*"abc")
    for client_id, when in (("a", 30), ("b", 10), ("c", 20)):
        will_at(manager, client_id, when)
    assert manager.due_wills(9.999) == []
    assert names(manager.due_wills(20)) == ["b", "c"]
    assert manager.due_wills(20) == []
    assert names(manager.due_wills(30)) == ["a"]


@pytest.mark.parametrize("moves", [[10, 10], [20, 10], [5, NEVER, 5], [20, 5, 10, 15]])
def test_a_will_with_several_reminders_is_given_once(moves: list[float]) -> None:
    manager = manager_with("a")
    for when in moves:
        will_at(manager, "a", when)
    assert names(manager.due_wills(100)) == ["a"]
    assert manager.due_wills(100) == []


def test_no_will_nothing_due() -> None:
    manager = manager_with("a")
    session = will_at(manager, "a", 10)
    session.will = None
    assert manager.due_wills(100) == []


def test_will_and_end_do_not_disturb_each_other() -> None:
    manager = manager_with("a")
    session = will_at(manager, "a", 10)
    end_at(manager, "a", 20)
    assert manager.clean_expired(15) == []
    assert manager.due_wills(15) == [session]
    assert manager.due_wills(25) == []
    assert manager.clean_expired(25) == [session]


# ---- what deadlines cost


def test_a_million_moves_leave_a_small_heap() -> None:
    manager = manager_with(*map(str, range(100)))
    sessions = list(manager)
    choose = random.Random(1)
    largest = 0
    for number in range(1_000_000):
        session = sessions[number % 100]
        session.ends_at = 1e6 + choose.random()
        manager._ends.note(session, sessions)
        if number % 97 == 0:
            largest = max(largest, len(manager._ends._heap))
    assert largest <= 2 * 100 + 1001
    assert manager.clean_expired(1e6) == []
    assert sorted(names(manager.clean_expired(2e6)), key=int) == [str(number) for number in range(100)]


def test_reminders_of_connected_clients_are_swept_out_too() -> None:
    manager = manager_with("a")
    for number in range(5000):
        end_at(manager, "a", 1e6 + number)
        end_at(manager, "a", NEVER)
    assert len(manager._ends._heap) <= 1002
    assert manager.clean_expired(2e6) == []


def test_a_look_at_deadlines_costs_what_is_due() -> None:
    """Counted, not timed: how often the deadline of a session is asked for."""
    asked = 0

    def when(session: Session) -> float:
        nonlocal asked
        asked += 1
        return session.ends_at

    manager = manager_with(*map(str, range(10_000)))
    manager._ends = Deadlines(when)
    for number, session in enumerate(manager):
        end_at(manager, session.client_id, 1000 + number)
    asked = 0
    assert manager.clean_expired(999) == []
    assert asked == 0
    assert names(manager.clean_expired(1002)) == ["0", "1", "2"]
    assert asked == 3


MOVE = st.tuples(st.sampled_from("abcd"), st.sampled_from([5.0, 10.0, 15.0, 20.0, NEVER]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(MOVE, st.tuples(st.just("clock"), st.sampled_from([4.0, 5.0, 12.0, 20.0]))), max_size=30
    )
)
def test_deadlines_agree_with_a_dictionary(steps: list[tuple[str, float]]) -> None:
    manager, model = manager_with(*"abcd"), dict.fromkeys("abcd", NEVER)
    for name, when in steps:
        if name == "clock":
            due = {client_id for client_id, end in model.items() if end <= when}
            found = names(manager.clean_expired(when))
            assert sorted(found) == sorted(due)
            for client_id in due:
                model[client_id] = NEVER
                manager.create(client_id)
        else:
            model[name] = when
            end_at(manager, name, when)


# ---- assigned ClientIDs [B04]


def test_new_client_ids_are_of_the_kind_every_server_must_take() -> None:
    made = {manager_with().new_client_id() for _ in range(1000)}
    assert len(made) == 1000
    for client_id in made:
        assert len(client_id) == 23 and set(client_id) <= set(ALPHABET)
    assert len(set(ALPHABET)) == len(ALPHABET) == 62


def test_a_new_client_id_that_is_taken_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter("x" * 22 + "y" * 22)
    monkeypatch.setattr(module.secrets, "choice", lambda letters: next(drawn))
    manager = manager_with("a" + "x" * 22)
    assert manager.new_client_id() == "a" + "y" * 22
