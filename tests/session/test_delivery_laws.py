"""At least once, exactly once and in order, under any schedule of connects, cuts, publishes and acks.

A client that keeps its own session state, as the standard asks, talks to a whole broker in memory.
What it must see is a list: the messages that were published, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker import Broker, Config, Limits
from broker.packet.packets import (
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
)
from tests.peer import Peer, memory_broker, message_bytes, settle

FOREVER = {"session_expiry_interval": 0xFFFFFFFF}


class Receiver:
    """The subscribing half of a client: its QoS 2 table outlives its connections."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peer: Peer | None = None
        self.due: list[Packet] = []  # what the client owes the broker, in order
        self.open: dict[int, bytes] = {}  # QoS 2: PUBLISH seen, PUBREL not
        self.seen: dict[bytes, int] = {}  # how often each payload was handed to the application
        self.order: list[bytes] = []  # by first receipt
        self.arrived: set[tuple[int, bytes]] = set()  # identifier and payload, ever read from the wire
        self.unacknowledged: set[int] = set()  # of this connection
        self.receive_maximum = 0

    async def connect(self, receive_maximum: int) -> None:
        self.peer = Peer(self.broker)
        self.due, self.unacknowledged, self.receive_maximum = [], set(), receive_maximum
        self.peer.send(
            Connect("r", clean_start=False, properties={**FOREVER, "receive_maximum": receive_maximum})
        )
        await self.peer.expect(Connack)

    async def cut(self) -> None:
        if self.peer is not None:
            self.peer.drop()
            await settle(self.broker, "r")
        self.peer, self.due = None, []

    async def read(self) -> bool:
        """Read what is there, up to the answer of a ping; whether there was anything."""
        assert self.peer is not None
        before = len(self.due)
        self.peer.send_raw(b"\xc0\x00")
        while type(packet := await self.peer.recv()).__name__ != "Pingresp":
            assert packet is not None
            self.take(packet)
        return len(self.due) > before

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Pubrel):
            self.open.pop(packet.packet_id, None)
            self.due.append(Pubcomp(packet.packet_id))
        elif isinstance(packet, Publish) and packet.qos:
            self.take_publish(packet)

    def take_publish(self, packet: Publish) -> None:
        known = (packet.packet_id, packet.payload) in self.arrived
        assert packet.dup or not known, "a packet that was read before comes again without DUP"
        self.arrived.add((packet.packet_id, packet.payload))
        self.unacknowledged.add(packet.packet_id)
        assert len(self.unacknowledged) <= self.receive_maximum
        if packet.qos == 1:
            self.hand_over(packet.payload)
            self.due.append(Puback(packet.packet_id))
        else:
            assert self.open.get(packet.packet_id, packet.payload) == packet.payload
            if packet.packet_id not in self.open:
                self.hand_over(packet.payload)
            self.open[packet.packet_id] = packet.payload
            self.due.append(Pubrec(packet.packet_id))

    def hand_over(self, payload: bytes) -> None:
        if payload not in self.seen:
            self.order.append(payload)
        self.seen[payload] = self.seen.get(payload, 0) + 1

    def answer(self, count: int) -> None:
        """Send the first *count* acknowledgements that are due."""
        assert self.peer is not None
        for packet in self.due[:count]:
            self.peer.send(packet)
            if isinstance(packet, Puback | Pubcomp):
                self.unacknowledged.discard(packet.packet_id)
        del self.due[:count]


OUTBOUND = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 2)),
        st.tuples(st.just("answer"), st.integers(1, 4)),
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("connect"), st.integers(1, 4)),
    ),
    max_size=40,
)


async def outbound(steps: Sequence[tuple[str, int]]) -> None:
    config = Config(limits=Limits(session_expiry_interval=0xFFFFFFFF, session_expiry_interval_3x=0xFFFFFFFF))
    async with memory_broker(config) as broker:
        receiver = Receiver(broker)
        await receiver.connect(3)
        assert receiver.peer is not None
        assert isinstance(await receiver.peer.subscribe("t", qos=2), Suback)
        published: list[tuple[bytes, int]] = []
        for step, number in steps:
            if step == "publish":
                payload = b"%d" % len(published)
                published.append((payload, number))
                await broker.publish("t", payload, qos=number)
            elif step == "connect":
                await receiver.cut()
                await receiver.connect(number)
            elif step == "cut":
                await receiver.cut()
            elif receiver.peer is not None:
                receiver.answer(number) if step == "answer" else await receiver.read()
        await receiver.cut()
        await receiver.connect(2)
        while await receiver.read() or receiver.due:
            receiver.answer(len(receiver.due))
        assert receiver.order == [payload for payload, _ in published]
        for payload, qos in published:
            assert receiver.seen[payload] == 1 or qos == 1
        session = broker._core.sessions.get("r")
        assert session is not None and not session.queue and not session.inflight.entries
        assert session.bytes == 0 and message_bytes(broker) == 0


@settings(max_examples=150, deadline=None)
@given(OUTBOUND)
def test_outbound_messages_arrive_by_their_qos(steps: list[tuple[str, int]]) -> None:
    asyncio.run(outbound(steps))


# ---- the other direction: the client publishes, is cut, and sends again


class Sender:
    """The publishing half of a client: unacknowledged packets outlive its connections."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peer: Peer | None = None
        self.open: dict[int, Publish] = {}  # not acknowledged: to be sent again
        self.released: list[int] = []  # PUBREC seen, PUBCOMP not
        self.deaf = False  # left an acknowledgement unread: those behind it wait for the next connection too
        self.next = 0

    async def connect(self) -> None:
        self.peer, self.deaf = Peer(self.broker), False
        await self.peer.connect("s", clean_start=False, properties=FOREVER)
        for packet in self.open.values():
            packet.dup = True
            self.peer.send(packet)
        for packet_id in self.released:
            self.peer.send(Pubrel(packet_id))

    async def cut(self) -> None:
        if self.peer is not None:
            self.peer.drop()
            await settle(self.broker, "s")
        self.peer = None

    def publish(self, payload: bytes, qos: int) -> None:
        self.next += 1
        packet = self.open[self.next] = Publish("t", payload, qos, packet_id=self.next)
        if self.peer is not None:
            self.peer.send(packet)

    async def read(self, count: int) -> bool:
        """Take at most *count* acknowledgements; whether there was one."""
        assert self.peer is not None
        self.peer.send_raw(b"\xc0\x00")
        taken = 0
        while type(packet := await self.peer.recv()).__name__ != "Pingresp":
            self.deaf = self.deaf or taken >= count
            if not self.deaf:
                self.take(packet)
            taken += 1
        return taken > 0

    def take(self, packet: Any) -> None:
        assert self.peer is not None and packet.reason_code in (0x00, 0x10, 0x92)
        if isinstance(packet, Pubrec):
            self.open.pop(packet.packet_id, None)
            if packet.packet_id not in self.released:
                self.released.append(packet.packet_id)
            self.peer.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Puback):
            self.open.pop(packet.packet_id, None)
        elif isinstance(packet, Pubcomp) and packet.packet_id in self.released:
            self.released.remove(packet.packet_id)


async def inbound(steps: Sequence[tuple[str, int]]) -> None:
    async with memory_broker() as broker:
        got: list[bytes] = []
        local = broker.subscribe("t")
        sender = Sender(broker)
        await sender.connect()
        published: list[tuple[bytes, int]] = []
        for step, number in steps:
            if step == "publish":
                published.append((b"%d" % len(published), number))
                sender.publish(*published[-1])
            elif step in ("cut", "connect"):
                await sender.cut()
                if step == "connect":
                    await sender.connect()
            elif sender.peer is not None:
                await sender.read(number)
        await sender.cut()
        await sender.connect()
        while await sender.read(100) or sender.open or sender.released:
            pass
        local.close()
        async for message in local:
            got.append(message.payload)
        for payload, qos in published:
            assert got.count(payload) == 1 or (qos == 1 and got.count(payload) > 1)
        for qos in (1, 2):
            first = [payload for payload in dict.fromkeys(got) if (payload, qos) in published]
            assert first == [payload for payload, its in published if its == qos]
        session = broker._core.sessions.get("s")
        assert session is not None and not session.inflight.held
        assert session.bytes == 0 and message_bytes(broker) == 0


INBOUND = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 2)),
        st.tuples(st.just("read"), st.integers(0, 3)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("connect"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(INBOUND)
def test_inbound_messages_are_routed_by_their_qos(steps: list[tuple[str, int]]) -> None:
    asyncio.run(inbound(steps))
