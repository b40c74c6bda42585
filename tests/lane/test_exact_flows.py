"""Whole flows of QoS 2 in runs: who is sent what, and what happens when a run has to be told apart."""

from __future__ import annotations

from typing import Any

import pytest

from broker import Broker
from broker.client import Client
from broker.lane.exactly import LONGEST
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.message import Message
from broker.packet.packets import Pubcomp, Publish, Subscribe, SubscribeRequest
from broker.packet.reader import PacketReader
from broker.session.delivery import Delivery
from broker.session.inflight import Inflight
from tests.lane.by_hand import by_hand, joined, take
from tests.peer import memory_broker, run_async
from tests.wire import Wire, turns

V3, V5 = Version.MQTT_3_1_1, Version.MQTT_5


def acks(first_byte: int, *packet_ids: int) -> bytes:
    return b"".join(bytes((first_byte, 2)) + packet_id.to_bytes(2, "big") for packet_id in packet_ids)


def burst(*packet_ids: int, alike: bool = True, topic: str = "t", version: Version = V5) -> bytes:
    payloads = (b"%03d" % n if alike else b"x" * (n % 5) for n in packet_ids)
    packets = (Publish(topic, p, 2, packet_id=n) for n, p in zip(packet_ids, payloads, strict=True))
    return b"".join(encode(packet, version) for packet in packets)


def table(broker: Broker, client_id: str) -> Inflight:
    session = broker.clients[client_id].session
    assert session is not None
    return session.inflight


async def received(wire: Wire, version: Version) -> list[Publish]:
    await turns(5)
    reader = PacketReader(from_client=False)
    reader.version = version
    return [packet for packet in reader.feed(wire.sent()) if isinstance(packet, Publish)]


def client(broker: Broker, client_id: str) -> Client:
    return broker.clients[client_id]


def known(broker: Broker) -> None:
    """The topic has been published to before."""
    for _ in range(2):
        broker._core.tree.match("t")


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("publisher", [V3, V5])
@run_async
async def test_each_gets_its_qos_and_its_version(publisher: Version, alike: bool) -> None:
    numbers = range(1, 31)
    async with memory_broker(by_hand()) as broker:
        wires: dict[tuple[Version, int], Wire] = {}
        for version in (V3, V5):
            for qos in range(3):
                name = f"s{version}{qos}"
                wires[version, qos] = await joined(broker, name, "t", qos=qos, version=version)
        sender = await joined(broker, "p", version=publisher)
        used = broker._core.budget.used
        for _ in range(2):
            assert take(broker, "p", burst(*numbers, alike=alike, version=publisher)) == b""
            assert table(broker, "p").holds and not table(broker, "p").singles
            assert client(broker, "p").extra.receiving == {*numbers}
            assert take(broker, "p", acks(0x62, *numbers)) == b""
            assert not client(broker, "p").extra.receiving and not table(broker, "p").holds
            await turns()
            assert sender.sent() == acks(0x50, *numbers) + acks(0x70, *numbers)
            for (version, qos), wire in wires.items():
                got = await received(wire, version)
                assert [(p.qos, p.dup, p.retain) for p in got] == [(qos, False, False)] * len(numbers)
                wanted = [b"%03d" % n if alike else b"x" * (n % 5) for n in numbers]
                assert [p.payload for p in got] == wanted
                identifiers = [p.packet_id for p in got]
                if qos == 2:
                    assert take(broker, f"s{version}2", acks(0x50, *identifiers)) == b""
                    await turns()
                    assert wire.sent() == acks(0x62, *identifiers)
                    assert take(broker, f"s{version}2", acks(0x70, *identifiers)) == b""
                elif qos == 1:
                    assert take(broker, f"s{version}1", acks(0x40, *identifiers)) == b""
        assert broker._core.budget.used == used
        assert all(table(broker, name).used == 0 for name in broker.clients)


@pytest.mark.parametrize(
    ("recs", "comps"),
    [
        ((3, 7), (3, 7)),
        ((10,), (1, 9)),
        ((1, 9), (10,)),
        ((5, 5), (2, 2, 2, 4)),
        ((1,) * 10, (1,) * 10),
    ],
)
@run_async
async def test_answers_that_come_in_pieces(recs: tuple[int, ...], comps: tuple[int, ...]) -> None:
    async with memory_broker(by_hand()) as broker:
        wire = await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        take(broker, "p", burst(*range(1, 11)))
        take(broker, "p", acks(0x62, *range(1, 11)))
        await turns()
        wire.sent()
        for first_byte, pieces in ((0x50, recs), (0x70, comps)):
            at = 1
            for piece in pieces:
                assert take(broker, "s", acks(first_byte, *range(at, at + piece))) == b""
                at += piece
            await turns()
            assert wire.sent() == (acks(0x62, *range(1, 11)) if first_byte == 0x50 else b"")
        assert not table(broker, "s").exact and not table(broker, "s").entries


@run_async
async def test_pubrels_in_pieces_and_those_of_several_runs_at_once() -> None:
    async with memory_broker(by_hand()) as broker:
        wire = await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        take(broker, "p", burst(*range(1, 21)))
        take(broker, "p", burst(*range(21, 31), alike=False))
        for some in (range(1, 4), range(4, 25), range(25, 31)):
            assert take(broker, "p", acks(0x62, *some)) == b""
        got = await received(wire, V5)
        wanted = [b"%03d" % n for n in range(1, 21)] + [b"x" * (n % 5) for n in range(21, 31)]
        assert [p.payload for p in got] == wanted and [p.packet_id for p in got] == [*range(1, 31)]


ZERO = b"\x34\x09\0\1t\0\0\0" + b"000"  # as a burst would have it


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (burst(1, 2, 2, 3, alike=False), burst(2, 3, alike=False)),
        (burst(*range(1, 16), 1), burst(1)),
        (burst(*range(1, 16)) + ZERO, ZERO),
        (burst(*range(1, 7), alike=False) + burst(3, alike=False), burst(3, alike=False)),
    ],
)
@run_async
async def test_an_identifier_that_is_held_stops_the_run(data: bytes, left: bytes) -> None:
    async with memory_broker(by_hand()) as broker:
        known(broker)
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        assert take(broker, "p", data) == left


@run_async
async def test_an_identifier_of_an_earlier_read_is_held_as_well() -> None:
    async with memory_broker(by_hand()) as broker:
        known(broker)
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        assert take(broker, "p", burst(*range(1, 16))) == b""
        assert take(broker, "p", burst(*range(12, 30))) == burst(*range(12, 30))
        assert table(broker, "p").held_run is not None and not table(broker, "p").singles


@run_async
async def test_runs_stay_runs_while_others_come_and_go_and_beside_single_messages() -> None:
    retained = encode(Publish("t", b"kept", 2, retain=True, packet_id=900), V5)
    async with memory_broker(by_hand()) as broker:
        known(broker)
        wires = [await joined(broker, "s", "t", qos=2)]
        mine = await joined(broker, "p")
        mine.incoming.put_nowait(retained)
        await turns(10)
        held = table(broker, "p")
        assert [*held.singles] == [900] and held.held_run is None
        assert take(broker, "p", burst(*range(1, 16))) == b"" and held.held_run is not None
        wires.append(await joined(broker, "t", "t", qos=1))
        assert take(broker, "p", acks(0x62, *range(1, 4))) == b""
        assert held.held_run is not None and held.held_run.count == 12 and [*held.singles] == [900]
        assert take(broker, "p", burst(*range(20, 26), alike=False)) == b""
        wires.append(await joined(broker, "u", "#", qos=0))
        mine.incoming.put_nowait(acks(0x62, *range(4, 16), 900))
        await turns(10)
        assert held.held_run is not None and held.held_run.count == 6 and not held.singles
        assert take(broker, "p", acks(0x62, *range(20, 26))) == b"" and not held.holds
        wanted = [b"%03d" % n for n in range(1, 16)] + [b"kept"] + [b"x" * (n % 5) for n in range(20, 26)]
        for wire, before in zip(wires, (0, 0, 3), strict=True):
            got = [p.payload for p in await received(wire, V5)]
            assert got == wanted[before:]


@run_async
async def test_somebody_of_two_audiences_gets_all_in_order() -> None:
    """One hears both topics, two hear one of them each: the audiences share a member."""
    async with memory_broker(by_hand()) as broker:
        both = await joined(broker, "s", "#", qos=2)
        others = [await joined(broker, f"s{topic}", topic, qos=2) for topic in "tu"]
        await joined(broker, "p")
        for n in range(1, 41, 20):
            data = b"".join(burst(k, topic="tu"[k % 2]) for k in range(n, n + 20))
            assert take(broker, "p", data) == b""
            assert take(broker, "p", acks(0x62, *range(n, n + 20))) == b""
        assert [p.payload for p in await received(both, V5)] == [b"%03d" % n for n in range(1, 41)]
        for place, wire in enumerate(others):
            wanted = [b"%03d" % n for n in range(1, 41) if n % 2 == place]
            assert [p.payload for p in await received(wire, V5)] == wanted


@run_async
async def test_receive_maximum_holds_in_runs() -> None:
    async with memory_broker(by_hand(receive_maximum=20)) as broker:
        known(broker)
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        await joined(broker, "q", version=V3)
        assert take(broker, "p", burst(*range(1, 16))) == b""
        assert take(broker, "p", burst(*range(16, 31))) == burst(*range(21, 31))
        assert take(broker, "q", burst(*range(1, 31), version=V3)) == b"", "3.1.1 knows none"
        assert table(broker, "q").held_run is not None and not table(broker, "q").singles


@pytest.mark.parametrize("why", ["gone", "came", "blocked", "window", "no topic"])
@run_async
async def test_what_is_not_so_any_more_at_pubrel_is_looked_at_one_by_one(why: str) -> None:
    async with memory_broker(by_hand(receive_maximum=100)) as broker:
        known(broker)
        wires = [await joined(broker, "s", "t", qos=2)]
        await joined(broker, "p")
        assert take(broker, "p", burst(*range(1, 16))) == b"" and table(broker, "p").held_run is not None
        if why == "gone":
            wires.pop().incoming.put_nowait(b"\xa2\x06\0\1\0\0\1t")
        elif why == "came":
            wires.append(await joined(broker, "t", "t", qos=1))
        elif why == "blocked":
            client(broker, "s")._wait().blocked = True
        elif why == "window":
            session = client(broker, "s").session
            assert session is not None
            session.table().window = 4
        elif why == "no topic":
            broker._connections._terms.lane.__self__.known.forget()  # type: ignore[attr-defined]
        await turns(10)
        assert take(broker, "p", acks(0x62, *range(1, 16))) == b""
        if why == "blocked":
            client(broker, "s")._unblock()
        for wire in wires:
            got = await received(wire, V5)
            wanted = [b"%03d" % n for n in range(1, 5 if why == "window" else 16)]
            assert [p.payload for p in got] == wanted
        assert not table(broker, "p").holds and not client(broker, "p").extra.receiving


@pytest.mark.parametrize("order", ["reversed", "skipped", "twice", "unknown first"])
@run_async
async def test_pubrels_in_another_order(order: str) -> None:
    numbers = [*range(1, 16)]
    orders: dict[str, Any] = {
        "reversed": numbers[::-1],
        "skipped": numbers[::2] + numbers[1::2],
        "twice": numbers[:5] + numbers,
        "unknown first": [900, *numbers],
    }
    async with memory_broker(by_hand()) as broker:
        wire = await joined(broker, "s", "t", qos=2)
        mine = await joined(broker, "p")
        mine.incoming.put_nowait(burst(*numbers))
        await turns(10)
        mine.sent()
        mine.incoming.put_nowait(acks(0x62, *orders[order]))
        got = await received(wire, V5)
        assert [p.payload for p in got] == [b"%03d" % n for n in dict.fromkeys(orders[order]) if n < 900]
        assert not table(broker, "p").holds
        reader = PacketReader(from_client=False)
        reader.version = V5
        assert [p.packet_id for p in reader.feed(mine.sent()) if isinstance(p, Pubcomp)] == orders[order]


@run_async
async def test_what_is_held_and_what_was_sent_outlive_the_connection() -> None:
    later = {"session_expiry_interval": 60}
    async with memory_broker(by_hand()) as broker:
        known(broker)
        wire = await joined(broker, "s", "t", qos=2, properties=later)
        mine = await joined(broker, "p", properties=later)
        take(broker, "p", burst(*range(1, 16)))
        take(broker, "p", acks(0x62, *range(1, 8)))
        take(broker, "s", acks(0x50, 1, 2, 3))
        take(broker, "s", acks(0x70, 1))
        for one in (wire, mine):
            one.abort()
        await turns(10)
        wire = await joined(broker, "s", clean_start=False, properties=later, keep=True)
        sent = wire.sent()
        assert acks(0x62, 2, 3) in sent and acks(0x62, 1) not in sent
        reader = PacketReader(from_client=False)
        reader.version = V5
        again = [packet for packet in reader.feed(sent) if isinstance(packet, Publish)]
        found = [(p.packet_id, p.dup, p.payload) for p in again]
        assert found == [(n, True, b"%03d" % n) for n in range(4, 8)]
        mine = await joined(broker, "p", clean_start=False, properties=later)
        assert take(broker, "p", burst(8)) == burst(8), "held since before"
        assert take(broker, "p", acks(0x62, *range(8, 16))) == b""
        got = await received(wire, V5)
        assert [p.payload for p in got] == [b"%03d" % n for n in range(8, 16)]


@run_async
async def test_pubcomp_of_a_run_lets_retained_messages_go_on() -> None:
    """They wait while the window and the queue are full, and nobody but the client's answers wakes them."""
    async with memory_broker(by_hand(maximum_queued_messages=2)) as broker:
        known(broker)
        wire = await joined(broker, "s", "t", qos=2, properties={"receive_maximum": 3})
        await joined(broker, "p")
        for number in range(4):
            await broker.publish(f"r/{number}", b"kept", qos=2, retain=True)
        assert take(broker, "p", burst(1, 2, 3)) == b"" and take(broker, "p", acks(0x62, 1, 2, 3)) == b""
        wire.incoming.put_nowait(encode(Subscribe(9, [SubscribeRequest("r/#", 2)]), V5))
        assert [p.payload for p in await received(wire, V5)] == [b"001", b"002", b"003"]
        assert take(broker, "s", acks(0x50, 1, 2, 3)) == b"" and client(broker, "s").feeding
        assert not await received(wire, V5)
        assert take(broker, "s", acks(0x70, 1, 2, 3)) == b""
        assert [p.payload for p in await received(wire, V5)] == [b"kept"] * 3


@run_async
async def test_properties_in_the_middle_of_packets_that_look_alike() -> None:
    async with memory_broker(by_hand()) as broker:
        known(broker)
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        packets = [burst(n) for n in range(1, 21)]
        other = encode(Publish("t", b"", 2, packet_id=10, properties={"content_type": ""}), V5)
        assert len(other) == len(packets[9])
        packets[9] = other
        assert take(broker, "p", b"".join(packets)) == b"".join(packets[9:])


@run_async
async def test_a_run_has_so_many_messages_at_most() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        for alike, first in ((True, 1), (False, 1000)):
            numbers = range(first, first + LONGEST + 44)
            assert take(broker, "p", burst(*numbers, alike=alike)) == b""
            counts, run = [], table(broker, "p").held_run
            while run is not None:
                counts.append(run.count)
                run = run.next
            assert counts == [LONGEST, 44]
            assert take(broker, "p", acks(0x62, *numbers)) == b"" and not table(broker, "p").holds


@run_async
async def test_who_gets_a_message_now_and_then_keeps_no_table() -> None:
    async with memory_broker(by_hand()) as broker:
        await joined(broker, "s", "t", qos=2)
        await joined(broker, "p")
        for number in (1, 2):
            take(broker, "p", burst(number) + acks(0x62, number))
            take(broker, "s", acks(0x50, number))
            assert not table(broker, "s").blank
            take(broker, "s", acks(0x70, number))
            assert table(broker, "s").blank


@pytest.mark.parametrize("why", ["room", "window", "blocked", "queue"])
@run_async
async def test_one_of_several_audiences_has_no_room(why: str) -> None:
    async with memory_broker(by_hand()) as broker:
        wires = [await joined(broker, f"s{topic}", topic, qos=2) for topic in "tu"]
        await joined(broker, "p")
        numbers = range(1, 21)
        data = b"".join(burst(n, topic="tu"[n % 2]) for n in numbers)
        session = client(broker, "su").session
        assert session is not None
        if why == "window":
            session.table().window = 4
        elif why == "queue":
            session.enqueue(Delivery(Message("u", b"before", 2), 2, False))
        elif why == "blocked":
            client(broker, "su")._wait().blocked = True
        for _ in range(2):  # the second time after what the first left behind
            assert take(broker, "p", data) == b""
            assert take(broker, "p", acks(0x62, *numbers)) == b""
        if why == "blocked":
            client(broker, "su")._unblock()
        session.pump()
        even, odd = ([b"%03d" % n for n in numbers if n % 2 == side] * 2 for side in (0, 1))
        assert [p.payload for p in await received(wires[0], V5)] == even
        got = [p.payload for p in await received(wires[1], V5)]
        assert got == {"window": odd[:4], "queue": [b"before", *odd]}.get(why, odd)
        assert session.inflight.used == len(got)
