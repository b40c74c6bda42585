"""Packet identifiers, the window, and the table of QoS 1 and 2 [MQTT5 2.2.1, 4.3, 4.9]."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.errors import ProtocolError
from broker.packet.enums import PacketType
from broker.session.delivery import NEXT, Delivery, State
from broker.session.inflight import Inflight
from tests.session.make import in_flight, message

PUBACK, PUBREC, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP
ACKS = (PUBACK, PUBREC, PUBCOMP)


def delivery(qos: int = 1, payload: bytes = b"") -> Delivery:
    return Delivery(message(payload, qos), qos, False)


def opened(window: int = 65535) -> Inflight:
    inflight = Inflight()
    inflight.open(window)
    return inflight


def started(inflight: Inflight, qos: int = 1, payload: bytes = b"") -> Delivery:
    made = delivery(qos, payload)
    inflight.start(made)
    return made


def at(state: State) -> tuple[Inflight, Delivery]:
    """A table with one delivery that waits for what *state* says."""
    inflight = opened()
    made = started(inflight, 1 if state is State.WAIT_PUBACK else 2)
    if state is State.WAIT_PUBCOMP:
        inflight.acknowledge(made.packet_id, PUBREC, 0)
    assert made.state is state
    return inflight, made


# ---- the table of steps

STEPS = [
    (State.WAIT_PUBACK, PUBACK, 0x00, State.DONE),
    (State.WAIT_PUBACK, PUBACK, 0x10, State.DONE),
    (State.WAIT_PUBACK, PUBACK, 0x87, State.DONE),
    (State.WAIT_PUBREC, PUBREC, 0x00, State.WAIT_PUBCOMP),
    (State.WAIT_PUBREC, PUBREC, 0x10, State.WAIT_PUBCOMP),
    (State.WAIT_PUBREC, PUBREC, 0x80, State.DONE),  # [MQTT-4.3.3-4]: below 0x80 goes on, no PUBREL else
    (State.WAIT_PUBCOMP, PUBREC, 0x00, State.WAIT_PUBCOMP),
    (State.WAIT_PUBCOMP, PUBREC, 0x80, State.WAIT_PUBCOMP),  # PUBREL has left: only PUBCOMP ends it
    (State.WAIT_PUBCOMP, PUBCOMP, 0x00, State.DONE),
    (State.WAIT_PUBCOMP, PUBCOMP, 0x92, State.DONE),
]
LEGAL = {(state, packet) for state, packet, _, _ in STEPS}
WAITING = (State.WAIT_PUBACK, State.WAIT_PUBREC, State.WAIT_PUBCOMP)
ILLEGAL = [(state, packet) for state in WAITING for packet in ACKS if (state, packet) not in LEGAL]


def test_next_is_this_table() -> None:
    assert set(NEXT) == LEGAL
    assert {(state, packet): to for state, packet, code, to in STEPS if code == 0} == NEXT


@pytest.mark.parametrize(("state", "packet", "code", "following"), STEPS)
def test_a_legal_step(state: State, packet: PacketType, code: int, following: State) -> None:
    inflight, made = at(state)
    assert inflight.acknowledge(made.packet_id, packet, code) is made
    assert made.state is following
    done = following is State.DONE
    assert (made.packet_id in inflight.entries, inflight.used) == (not done, 0 if done else 1)
    if done:
        assert inflight.acknowledge(made.packet_id, packet, code) is None, "an identifier is freed once"
        assert inflight.used == 0, "the quota never goes above its initial value [MQTT5 4.9]"


@pytest.mark.parametrize(("state", "packet"), ILLEGAL)
def test_any_other_step_is_a_protocol_error_and_changes_nothing(state: State, packet: PacketType) -> None:
    inflight, made = at(state)
    for code in (0x00, 0x80):
        with pytest.raises(
            ProtocolError, match=rf"{packet.name} for identifier {made.packet_id}.*{state.name}"
        ):
            inflight.acknowledge(made.packet_id, packet, code)
    assert (made.state, inflight.used, list(inflight.entries)) == (state, 1, [made.packet_id])


@pytest.mark.parametrize("packet", ACKS)
def test_an_identifier_that_nobody_waits_for(packet: PacketType) -> None:
    inflight, _ = at(State.WAIT_PUBREC)
    assert inflight.acknowledge(999, packet, 0) is None
    assert inflight.used == 1


# ---- identifiers


def test_identifiers_go_up_from_one_and_are_not_used_again_soon() -> None:
    inflight = opened()
    for expected in range(1, 100):
        made = started(inflight)
        assert made.packet_id == expected
        inflight.acknowledge(expected, PUBACK, 0)


def test_they_wrap_to_one_and_never_to_zero() -> None:
    inflight = opened(2)
    seen = []
    for _ in range(2 * 65535):
        made = started(inflight)
        seen.append(made.packet_id)
        inflight.acknowledge(made.packet_id, PUBACK, 0)
    assert seen == [*range(1, 65536)] * 2


def test_one_in_use_is_passed_over() -> None:
    inflight = opened()
    held = [started(inflight) for _ in range(3)]  # 1, 2, 3
    inflight.last = 65534
    assert [started(inflight).packet_id for _ in range(2)] == [65535, 4]
    inflight.acknowledge(held[1].packet_id, PUBACK, 0)
    inflight.last = 65535
    assert [started(inflight).packet_id for _ in range(2)] == [2, 5]


@pytest.mark.parametrize("free", [1, 2, 30000, 65534, 65535])
def test_the_only_free_one_is_found_wherever_it_is(free: int) -> None:
    inflight = opened()
    everything = [started(inflight) for _ in range(65535)]
    assert not inflight.room, "no identifier is free, whatever the window says"
    inflight.acknowledge(free, PUBACK, 0)
    assert inflight.room
    assert started(inflight).packet_id == free
    assert len(inflight.entries) == 65535 == inflight.used
    assert everything[free - 1].state is State.DONE


def test_a_wide_window_does_not_make_an_identifier_free() -> None:
    inflight = opened()
    for _ in range(65535):
        started(inflight)
    inflight.open(65535)  # a new connection, which has resent nothing yet
    assert inflight.used == 0 and not inflight.room
    inflight.acknowledge(4711, PUBACK, 0)
    assert inflight.room
    assert started(inflight).packet_id == 4711


# ---- the window, over connections


def test_room_is_what_the_window_leaves() -> None:
    inflight = opened(2)
    first = started(inflight)
    assert inflight.room
    second = started(inflight, 2)
    assert not inflight.room
    inflight.acknowledge(second.packet_id, PUBREC, 0)
    assert not inflight.room, "QoS 2 holds its slot until PUBCOMP"
    inflight.acknowledge(second.packet_id, PUBCOMP, 0)
    assert inflight.room
    inflight.acknowledge(first.packet_id, PUBACK, 0)
    assert (inflight.used, inflight.room) == (0, True)


def test_without_a_connection_there_is_no_room() -> None:
    assert not Inflight().room
    inflight = opened(5)
    inflight.close()
    assert not inflight.room and not inflight.resend


def test_the_quota_starts_afresh_and_counts_only_what_this_connection_sent() -> None:
    inflight = opened(3)
    one, two, three = (started(inflight, qos) for qos in (1, 2, 1))
    inflight.acknowledge(two.packet_id, PUBREC, 0)
    inflight.close()
    inflight.open(1)
    assert (inflight.used, inflight.window, inflight.room) == (0, 1, True)
    inflight.acknowledge(one.packet_id, PUBACK, 0)  # not sent again yet: it holds no slot
    inflight.acknowledge(two.packet_id, PUBCOMP, 0)
    assert inflight.used == 0, "a slot that was not taken is not given back"
    inflight.count(three)
    assert not inflight.room
    inflight.acknowledge(three.packet_id, PUBACK, 0)
    assert (inflight.used, inflight.room, inflight.entries) == (0, True, {})


def test_what_is_unfinished_is_resent_in_the_order_of_the_first_sending() -> None:
    inflight = opened()
    inflight.last = 65533
    made = [started(inflight, qos, payload) for qos, payload in ((1, b"a"), (2, b"b"), (2, b"c"), (1, b"d"))]
    assert [each.packet_id for each in made] == [65534, 65535, 1, 2]
    inflight.acknowledge(made[2].packet_id, PUBREC, 0)
    inflight.acknowledge(made[0].packet_id, PUBACK, 0)
    for _ in range(2):  # a second connection that is cut at once changes nothing
        inflight.close()
        inflight.open(10)
        assert [each.message.payload for each in inflight.resend] == [b"b", b"c", b"d"]
        assert [each.state for each in inflight.resend] == [
            *(State.WAIT_PUBREC, State.WAIT_PUBCOMP, State.WAIT_PUBACK)
        ]
    assert not any(each.counted for each in made)


def test_held_messages_of_the_client_outlive_the_connection() -> None:
    inflight = opened()
    inflight.hold(7, message(b"held", 2))
    started(inflight)
    inflight.close()
    inflight.open(1)
    assert [*inflight.held] == [7], "the two spaces of identifiers do not touch [B09]"


# ---- a machine against a small model


class Model:
    """The same in the fewest words: what each identifier waits for, and whether it holds a slot."""

    def __init__(self) -> None:
        self.waits: dict[int, str] = {}  # in the order of the first sending
        self.slots: set[int] = set()
        self.window = 0
        self.again: list[int] = []

    def step(self, packet_id: int, packet: str, code: int) -> str | None:
        """What is due then; None: nobody waits; "wrong": a breach."""
        waits = self.waits.get(packet_id)
        if waits is None:
            return None
        if waits == "PUBCOMP" and packet == "PUBREC":
            return waits
        if waits != packet:
            return "wrong"
        if packet == "PUBREC" and code < 0x80:
            self.waits[packet_id] = "PUBCOMP"
            return "PUBCOMP"
        del self.waits[packet_id]
        self.slots.discard(packet_id)
        return "done"


class InflightMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inflight = Inflight()
        self.inflight.last = 65532  # the wrap is near
        self.model = Model()

    @rule(window=st.integers(1, 4))
    def connect(self, window: int) -> None:
        self.inflight.close()
        self.inflight.open(window)
        self.model.window, self.model.slots, self.model.again = window, set(), [*self.model.waits]

    @rule()
    def cut(self) -> None:
        self.inflight.close()
        self.model.window, self.model.again = 0, []

    @precondition(lambda self: self.inflight.room)
    @rule(qos=st.integers(1, 2))
    def publish(self, qos: int) -> None:
        made = started(self.inflight, qos)
        assert 1 <= made.packet_id <= 65535 and made.packet_id not in self.model.waits
        self.model.waits[made.packet_id] = "PUBACK" if qos == 1 else "PUBREC"
        self.model.slots.add(made.packet_id)

    @precondition(lambda self: self.inflight.resend)
    @rule()
    def resend(self) -> None:
        again = self.inflight.resend[0]
        waits = self.model.waits.get(again.packet_id) if again.state is not State.DONE else None
        if waits in ("PUBACK", "PUBREC"):
            if self.inflight.used >= self.inflight.window:
                return
            self.inflight.count(again)
            self.model.slots.add(again.packet_id)
        self.inflight.resend.popleft()
        assert self.model.again.pop(0) == again.packet_id

    @rule(data=st.data(), packet=st.sampled_from(ACKS), code=st.sampled_from([0x00, 0x10, 0x80, 0x92]))
    def acknowledge(self, data: Any, packet: PacketType, code: int) -> None:
        packet_id = data.draw(st.sampled_from([*self.model.waits, 40000]))
        before = self.inflight.entries.get(packet_id)
        due = self.model.step(packet_id, packet.name, code)
        if due == "wrong":
            with pytest.raises(ProtocolError):
                self.inflight.acknowledge(packet_id, packet, code)
            return
        got = self.inflight.acknowledge(packet_id, packet, code)
        assert got is before
        assert due == (got and {State.DONE: "done", State.WAIT_PUBCOMP: "PUBCOMP"}[got.state])

    @invariant()
    def agrees(self) -> None:
        inflight, model = self.inflight, self.model
        waits = {packet_id: made.state.name for packet_id, made in inflight.entries.items()}
        assert waits == {packet_id: f"WAIT_{name}" for packet_id, name in model.waits.items()}
        assert [*waits] == [*model.waits]
        assert {packet_id for packet_id, made in inflight.entries.items() if made.counted} == model.slots
        assert inflight.used == len(model.slots)
        assert inflight.room == (len(model.slots) < model.window)
        assert len(in_flight(inflight)) == len(model.waits)


InflightMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestInflightMachine = InflightMachine.TestCase
