"""B15: Shared Subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import wire
from tests.conformance.client import Raw
from tests.conformance.codes import PROTOCOL_ERROR
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.conformance.sessions import returned


def members(
    server: Server, *names: str, qos: int = 2, share: str = "$share/g/t", **connect: Any
) -> list[Raw]:
    """Connected clients that are members of one group."""
    found = [server.connect(name, **connect) for name in names]
    for client in found:
        client.subscribe(share, qos=qos)
    return found


def publish(server: Server, *payloads: bytes, qos: int = 1, **kwargs: Any) -> None:
    """Publishes to t, from a client that is gone afterwards."""
    client = server.connect("publisher")
    for payload in payloads:
        client.publish("t", payload, qos=qos, **kwargs)
    client.disconnect()


def payloads(client: Raw) -> list[bytes | None]:
    return [packet.payload for packet in client.drain() if packet.name == "PUBLISH"]


def test_b15__each_group_gets_a_copy(server: Server) -> None:
    client = server.connect("c")
    filters = ("$share/g1/t", "$share/g2/t", "$share/G1/t", "$share/g1/+", "$share/g1/#", "t", "+")
    for number, topic_filter in enumerate(filters, 1):
        client.subscribe(topic_filter, qos=1, subscription_identifier=number)
    publish(server, b"x")
    found = [packet.properties["subscription_identifier"] for packet in client.expect_messages(*[b"x"] * 6)]
    assert sorted(sorted(one) for one in found) == [[1], [2], [3], [4], [5], [6, 7]]


def test_b15__groups_are_independent_of_each_other(server: Server) -> None:
    in_g = members(server, "a", "b")
    in_h = members(server, "c", "d", share="$share/h/t")
    (plain,) = members(server, "e", share="t")
    publish(server, *[b"%d" % n for n in range(10)])
    for group in (in_g, in_h):
        found = [payloads(client) for client in group]
        assert [len(one) for one in found] == [5, 5]
        assert sorted(found[0] + found[1], key=str) == [b"%d" % n for n in range(10)]
    assert payloads(plain) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_b15__in_turn(server: Server, qos: int) -> None:
    group = members(server, "a", "b", "c")
    publish(server, *[b"%d" % n for n in range(9)], qos=qos)
    found = [payloads(client) for client in group]
    assert sorted(found) == [[b"%d" % n for n in range(start, 9, 3)] for start in range(3)]


def test_b15__sticky_by_setting(serve: Serve) -> None:
    server = serve(shared_choice="sticky")
    first, second = members(server, "a", "b", receive_maximum=5)
    publish(server, *[b"%d" % n for n in range(5)])
    chosen, other = (first, second) if (found := payloads(first)) else (second, first)
    assert (found or payloads(chosen)) == [b"%d" % n for n in range(5)]
    other.expect_nothing()
    publish(server, b"full")  # the other one steps in, and keeps the turn
    publish(server, b"more")
    other.expect_messages(b"full", b"more")
    other.drop()
    chosen.expect_nothing()


def test_b15__by_publisher_by_setting(serve: Serve) -> None:
    server = serve(shared_choice="hash")
    group = members(server, "a", "b", "c")
    publishers = [server.connect(f"p{n}") for n in range(20)]
    for number in range(3):
        for publisher in publishers:
            publisher.publish("t", f"{publisher.client_id}/{number}")
    got = [sorted(payloads(client), key=str) for client in group]
    assert sum(map(len, got)) == 60 and all(got)
    for one in got:  # all three messages of a publisher, or none
        names = {(payload or b"")[:-2] for payload in one}
        assert one == sorted((b"%s/%d" % (name, n) for name in names for n in range(3)), key=str)
    group[0].drop()
    for publisher in publishers:
        publisher.publish("t", b"x")
    assert len(payloads(group[1])) + len(payloads(group[2])) == 20


def test_b15__a_member_that_cannot_take_the_size_is_passed_over(server: Server) -> None:
    (small,) = members(server, "small", maximum_packet_size=100)
    publish(server, b"x" * 200)
    small.expect_nothing()
    (large,) = members(server, "large")
    publish(server, *[b"y" * 200] * 3)
    large.expect_messages(*[b"y" * 200] * 3)
    small.expect_nothing()
    publish(server, *[b"z"] * 4)
    assert (len(payloads(small)), len(payloads(large))) == (2, 2)


def test_b15__a_member_with_a_free_slot_comes_first(server: Server) -> None:
    (busy,) = members(server, "busy", receive_maximum=1)
    (free,) = members(server, "free")
    publish(server, *[b"%d" % n for n in range(6)])
    one = payloads(busy)
    assert len(one) == 1
    assert sorted(payloads(free) + one, key=str) == [b"%d" % n for n in range(6)]
    publish(server, b"q0", b"q0", qos=0)  # needs no slot
    assert payloads(busy) == payloads(free) == [b"q0"]


def test_b15__then_one_whose_window_is_full(server: Server) -> None:
    group = members(server, "a", "b", receive_maximum=1)
    (away,) = members(server, "away", session_expiry_interval=60)
    away.disconnect()
    publish(server, *[b"%d" % n for n in range(6)])
    got: list[bytes | None] = []
    for client in group:
        for _ in range(3):
            packet = client.expect("PUBLISH", dup=False)
            got.append(packet.payload)
            client.ack(packet)
        client.expect_nothing()
    assert sorted(got, key=str) == [b"%d" % n for n in range(6)]
    server.connect("away", clean_start=False, session_present=True).expect_nothing()


def test_b15__then_one_that_is_away(server: Server) -> None:
    for client in members(server, "a", "b", session_expiry_interval=60):
        client.disconnect()
    publish(server, *[b"%d" % n for n in range(4)], reason=0x00)
    publish(server, b"q0", qos=0)
    found = [payloads(server.connect(name, clean_start=False, session_present=True)) for name in "ab"]
    assert sorted(found) == [[b"0", b"2"], [b"1", b"3"]]


def test_b15__nobody_is_left(server: Server) -> None:
    (member,) = members(server, "a", qos=0, session_expiry_interval=60)
    member.disconnect()
    publish(server, b"x", qos=2, reason=0x00)  # QoS 0 for a member that is away
    again = server.connect("a", clean_start=False, session_present=True)
    again.expect_nothing()


def test_b15__who_is_away_swallows_nothing(server: Server) -> None:
    away = members(server, *(f"away{n}" for n in range(5)), session_expiry_interval=60)
    (here,) = members(server, "here")
    for client in away:
        client.drop()
    publish(server, *[b"%d" % n for n in range(12)])
    here.expect_messages(*[b"%d" % n for n in range(12)])
    for n in range(5):
        server.connect(f"away{n}", clean_start=False, session_present=True).expect_nothing()


def test_b15__options_are_those_of_the_chosen_member(server: Server) -> None:
    server.expect_breach(wire.subscribe(1, ("$share/g/t", 0x04)), codes=PROTOCOL_ERROR)
    first, second = server.connect("a"), server.connect("b")
    first.subscribe("$share/g/t", qos=0, retain_as_published=True, subscription_identifier=1)
    second.subscribe("$share/g/t", qos=2, subscription_identifier=2)
    publish(server, b"x", b"x", qos=1, retain=True)
    first.expect_messages(b"x", qos=0, retain=True, subscription_identifier=[1])
    second.expect_messages(b"x", qos=1, retain=False, subscription_identifier=[2])


def laden(server: Server, **connect: Any) -> tuple[Raw, Raw]:
    """A member that was sent 1 (QoS 1) and 2 (QoS 2), while 3 (QoS 2) and 4 (QoS 1) wait; and a newcomer."""
    (member,) = members(server, "m", receive_maximum=2, **connect)
    publish(server, b"1")
    publish(server, b"2", b"3", qos=2)
    publish(server, b"4")
    member.expect_messages(b"1", b"2")
    (other,) = members(server, "o")
    other.expect_nothing()
    return member, other


def test_b15__member_goes_away_what_was_sent_waits_what_was_not_moves(server: Server) -> None:
    member, other = laden(server, session_expiry_interval=60)
    member.drop()
    other.expect_messages(b"3", b"4", dup=False)
    again = returned(server, "m")
    again.expect_messages(b"1", b"2", dup=True)
    other.expect_nothing()


def test_b15__member_goes_away_and_nobody_else_is_there(server: Server) -> None:
    member, other = laden(server, session_expiry_interval=60)
    other.disconnect()
    member.drop()
    again = returned(server, "m", receive_maximum=2)
    for packet in again.expect_messages(b"1", b"2", dup=True):
        again.ack(packet)
    again.expect_messages(b"3", b"4", dup=False)


def test_b15__member_goes_away_what_was_sent_at_qos_1_moves_by_setting(serve: Serve) -> None:
    server = serve(shared_unacknowledged="move")
    member, other = laden(server, session_expiry_interval=60)
    member.drop()
    other.expect_messages(b"1", b"3", b"4", dup=False)
    again = returned(server, "m")
    again.expect_messages(b"2", dup=True)
    other.expect_nothing()


def test_b15__session_ends_with_its_connection(server: Server) -> None:
    member, other = laden(server)
    member.drop()
    found = other.expect_messages(b"1", b"3", b"4", dup=False)
    assert [packet.qos for packet in found] == [1, 2, 1]
    assert len({packet.packet_id for packet in found}) == 3


def test_b15__session_ends_by_time(server: Server) -> None:
    member, other = laden(server, session_expiry_interval=60)
    member.drop()
    other.expect_messages(b"3", b"4", dup=False)
    server.advance(59)
    other.expect_nothing()
    server.advance(2)
    other.expect_messages(b"1", dup=False, qos=1)


def test_b15__session_ends_by_clean_start(server: Server) -> None:
    member, other = laden(server, session_expiry_interval=60)
    server.connect("m", clean_start=True, session_present=False).expect_nothing()
    member.expect_close(0x8E)
    assert sorted(payloads(other), key=str) == [b"1", b"3", b"4"]


def test_b15__session_ends_after_pubrec(server: Server) -> None:
    member, other = members(server, "m"), members(server, "o", share="$share/g/u")
    publish(server, b"x", qos=2)
    member[0].send(wire.pubrec(member[0].expect("PUBLISH").packet_id or 0))
    member[0].expect("PUBREL")
    other[0].subscribe("$share/g/t", qos=2)
    member[0].drop()
    other[0].expect_nothing()


def test_b15__member_unsubscribes_and_what_waits_for_that_group_moves(server: Server) -> None:
    member = server.connect("m", receive_maximum=1)
    member.subscribe("$share/g/t", qos=1)
    publish(server, b"sent", b"g")
    member.subscribe("$share/h/u", qos=1)
    server.connect("p").publish("u", b"h", qos=1)
    sent = member.expect("PUBLISH", payload="sent")
    (other,) = members(server, "o")
    other.subscribe("$share/h/u", qos=1)
    member.unsubscribe("$share/g/t")
    other.expect_messages(b"g", dup=False)
    member.ack(sent)
    member.expect_messages(b"h", dup=False)


def test_b15__what_was_sent_is_completed_after_unsubscribe(server: Server) -> None:
    member, other = laden(server, session_expiry_interval=60)
    member.unsubscribe("$share/g/t")
    other.expect_messages(b"3", b"4", dup=False)
    member.drop()
    again = returned(server, "m")
    for packet in again.expect_messages(b"1", b"2", dup=True):
        again.ack(packet)
    publish(server, b"5")
    again.expect_nothing()
    other.expect_messages(b"5")


@pytest.mark.parametrize("qos", [1, 2])
def test_b15__a_negative_acknowledgement_drops(server: Server, qos: int) -> None:
    first, second = members(server, "a", "b", session_expiry_interval=60)
    publish(server, b"x", qos=qos)
    chosen, other = (first, second) if (found := first.drain()) else (second, first)
    chosen.ack((found or chosen.drain())[0], 0x83)
    other.expect_nothing()
    chosen.expect_nothing()
    chosen.drop()
    other.expect_nothing()
    server.connect(chosen.client_id, clean_start=False, session_present=True).expect_nothing()


def test_b15__never_retained_messages(server: Server) -> None:
    publish(server, b"kept", retain=True)
    (member,) = members(server, "m")
    member.expect_nothing()


def test_b15__order_holds_for_each_member(server: Server) -> None:
    group = members(server, "a", "b", "c")
    for start in range(0, 30, 10):
        publish(server, *[b"%02d" % n for n in range(start, start + 10)], qos=1 + start // 10 % 2)
    for client in group:
        found = payloads(client)
        assert len(found) == 10 and found == sorted(found, key=str)


@pytest.mark.parametrize("version", [3, 4])
def test_b15__members_of_3_x(server: Server, version: int) -> None:
    (old,) = members(server, "a", version=version)
    (new,) = members(server, "b")
    publish(server, *[b"x"] * 6)
    assert (len(payloads(old)), len(payloads(new))) == (3, 3)
    old.unsubscribe("$share/g/t")
    publish(server, b"x", b"x")
    assert (len(payloads(old)), len(payloads(new))) == (0, 2)


def test_b15__members_of_3_x_switched_off(serve: Serve) -> None:
    server = serve(shared_subscriptions_3x=False)
    old = server.connect("a", 4)
    old.subscribe("$share/g/t", qos=1, granted=[0x80])
    members(server, "b")[0].expect_nothing()
    publish(server, b"x", b"x")
    old.expect_nothing()


BAD_SHARES = ["$share", "$share/", "$share/g", "$share/g/", "$share//t", "$share/g+/t", "$share/#/t"]


@pytest.mark.parametrize("topic_filter", BAD_SHARES)
@pytest.mark.parametrize("version", [5, 4])
def test_b15__the_same_rules_of_syntax(server: Server, topic_filter: str, version: int) -> None:
    server.expect_breach(wire.subscribe(1, topic_filter, version=version), codes=0x8F, version=version)


@pytest.mark.parametrize("prefix", ["$queue/", "$SHARE/g/", "$shared/g/", "$exclusive/"])
def test_b15__other_prefixes_are_ordinary_filters(serve: Serve, prefix: str) -> None:
    server = serve(dollar_topics=(prefix,))
    both = members(server, "a", "b", share=prefix + "t")
    publish(server, b"x", reason=0x10)
    server.connect("p").publish(prefix + "t", b"y", qos=1, reason=0x00)
    for client in both:
        client.expect_messages((prefix + "t", b"y"))


def test_b15__wills_go_to_one_member(server: Server) -> None:
    group = members(server, "a", "b")
    server.connect("w", will=wire.will("t", b"gone", qos=1)).drop()
    found = [packet for client in group for packet in client.drain()]
    assert [(packet.payload, packet.qos, packet.retain) for packet in found] == [(b"gone", 1, False)]


@pytest.mark.parametrize("as_published", [True, False])
def test_b15__the_retain_flag_passes(server: Server, as_published: bool) -> None:
    client = server.connect("c")
    client.subscribe("$share/g/t", qos=1, retain_as_published=as_published)
    publish(server, b"x", retain=True)
    publish(server, b"y", retain=False)
    kept, other = client.expect_messages(b"x", b"y")
    assert (kept.retain, other.retain) == (as_published, False)
