"""PacketReader: chunk borders, breaches, bounds."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import (
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolError,
    TopicNameInvalid,
    UnknownProtocol,
    UnsupportedProtocolVersion,
)
from broker.packet.codec import decode, encode
from broker.packet.enums import Version
from broker.packet.packets import Connack, Connect, Packet, Pingreq, Publish, Subscribe, SubscribeRequest
from broker.packet.reader import PIECE, PacketReader, TopicNames
from tests.packet import strategies as make

V3, V4, V5 = Version.MQTT_3_1, Version.MQTT_3_1_1, Version.MQTT_5
CONNECT_5 = encode(Connect("c"), V5)
CONNECT_4 = encode(Connect("c", V4), V4)
PING = b"\xc0\x00"


def connected(version: Version = V5, **settings: int) -> PacketReader:
    reader = PacketReader(**settings)  # type: ignore[arg-type]
    assert len(reader.feed(encode(Connect("c", version), version))) == 1
    return reader


def cut(raw: bytes, borders: list[int]) -> list[bytes]:
    places = [0, *sorted(border % (len(raw) + 1) for border in borders), len(raw)]
    return [raw[start:end] for start, end in pairwise(places)]


# ---- laws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", Version)
@given(data=st.data())
def test_chunk_borders_do_not_matter(version: Version, data: st.DataObject) -> None:
    packets = [data.draw(make.connects(version))]
    packets += data.draw(st.lists(make.client_packets(version, connect=False), max_size=5))
    raw, reader = b"".join(encode(packet, version) for packet in packets), PacketReader()
    read: list[Packet] = []
    for chunk in cut(raw, data.draw(st.lists(st.integers(0, len(raw)), max_size=8))):
        read += reader.feed(chunk)
    assert reader.error is None
    assert read == packets
    assert not reader.partial
    assert reader.version == version


def test_of_a_long_read_little_is_offered_at_a_time() -> None:
    """Each offer is a copy of the rest: of half a MiB of small packets that would be gigabytes."""
    offered: list[int] = []

    def take(data: bytes) -> bytes:
        offered.append(len(data))
        return data

    reader = PacketReader()
    reader.feed(CONNECT_5)
    raw = encode(Publish("t", bytes(5_000), 2, packet_id=1), Version.MQTT_5) * 100
    packets = [packet for part in reader.parts(raw, take) for packet in part]
    assert len(packets) == 100 and reader.error is None and not reader.partial
    assert max(offered) <= PIECE and len(offered) > 50


@pytest.mark.parametrize("version", Version)
@given(data=st.data())
def test_a_server_read_byte_by_byte(version: Version, data: st.DataObject) -> None:
    packets = data.draw(st.lists(make.server_packets(version), max_size=4))
    reader = PacketReader(from_client=False)
    reader.version = version
    read: list[Packet] = []
    for packet in packets:
        for byte in encode(packet, version):
            read += reader.feed(bytes((byte,)))
    assert reader.error is None
    assert read == packets


def outcome(chunks: list[bytes]) -> tuple[list[Packet], type[MqttError] | None, str, bool]:
    reader = PacketReader(maximum_packet_size=200)
    packets = [packet for chunk in chunks for packet in reader.feed(chunk)]
    error = reader.error
    return packets, error and type(error), str(error), reader.partial


@given(
    st.sampled_from([b"", CONNECT_4, CONNECT_5, CONNECT_5 + PING]),
    st.binary(max_size=80),
    st.lists(st.integers(0, 100), max_size=6),
)
def test_any_bytes_end_the_same_however_cut(start: bytes, noise: bytes, borders: list[int]) -> None:
    raw = start + noise
    at_once = outcome([raw])
    assert outcome(cut(raw, borders)) == at_once
    assert outcome([bytes((byte,)) for byte in raw]) == at_once


# ---- the first packet ------------------------------------------------------------------------


@pytest.mark.parametrize("raw", ["c000", "30", "82", "e000", "00", "f0", "20", "474554202f20485454"])
def test_first_packet_is_connect_3_1_0_1(raw: str) -> None:
    reader = PacketReader()
    assert reader.feed(bytes.fromhex(raw)) == []
    assert type(reader.error) is ProtocolError
    assert reader.version is None


@pytest.mark.parametrize(
    ("raw", "error", "version"),
    [
        pytest.param("10 07 0004 4d515458 05", UnknownProtocol, None, id="other name [3.1.2-1]"),
        pytest.param("10 05 0004 4d5154", UnknownProtocol, None, id="cut off in the name"),
        pytest.param("10 00", UnknownProtocol, None, id="empty"),
        pytest.param("10 07 0004 4d515454 06", UnsupportedProtocolVersion, None, id="level 6 [3.1.2-2]"),
        pytest.param("10 07 0004 4d515454 05", MalformedPacket, V5, id="5.0, cut off"),
        pytest.param("10 07 0004 4d515454 04", MalformedPacket, V4, id="3.1.1, cut off"),
        pytest.param("10 09 0006 4d5149736470 03", MalformedPacket, V3, id="3.1, cut off"),
        pytest.param("11 07 0004 4d515454 05", MalformedPacket, V5, id="flags [2.1.3-1]"),
        pytest.param("10 80 00", MalformedPacket, None, id="length longer than needed [1.5.5-1]"),
        pytest.param("10 ff ff ff ff", MalformedPacket, None, id="length of five bytes [1.5.5]"),
        pytest.param("10 ff ff 7f 0004 4d515454 05", PacketTooLarge, V5, id="too large, 5.0 [3.2.2.3.6]"),
        pytest.param("10 ff ff 7f 0004 4d515454 04", PacketTooLarge, V4, id="too large, 3.1.1"),
        pytest.param("10 ff ff 7f 0006 4d5149736470 03", PacketTooLarge, V3, id="too large, 3.1"),
        pytest.param("10 ff ff 7f 000a 4d51", PacketTooLarge, None, id="too large, name too long"),
        pytest.param("10 ff ff 7f 0004 4d515458 05", PacketTooLarge, None, id="too large, other name"),
    ],
)
def test_broken_connect(raw: str, error: type[MqttError], version: Version | None) -> None:
    reader = PacketReader(maximum_packet_size=1000)
    assert reader.feed(bytes.fromhex(raw)) == []
    assert type(reader.error) is error
    assert reader.version == version
    assert not reader.partial


def test_second_connect_3_1_0_2() -> None:
    reader = PacketReader()
    assert reader.feed(CONNECT_5 + PING + CONNECT_4 + PING) == [Connect("c"), Pingreq()]
    assert type(reader.error) is ProtocolError
    assert reader.version == V5


def test_version_comes_from_connect() -> None:
    assert PacketReader().version is None
    publish = encode(Publish("a", b"\x00x"), V4)
    assert connected(V4).feed(publish) == [Publish("a", b"\x00x")]
    assert connected(V5).feed(publish) == [Publish("a", b"x")]


def test_a_client_reads_5_0_until_told_otherwise() -> None:
    reader = PacketReader(from_client=False)
    assert reader.version == V5
    assert reader.feed(encode(Connack(), V5)) == [Connack()]
    reader.version = V4
    assert reader.feed(encode(Connack(False, 5), V4)) == [Connack(False, 5)]
    reader.feed(CONNECT_4)
    assert type(reader.error) is ProtocolError


# ---- breaches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        pytest.param("c0 80 00", MalformedPacket, id="length longer than needed [1.5.5-1]"),
        pytest.param("30 ff ff ff ff", MalformedPacket, id="length of five bytes [X5-23]"),
        pytest.param("00 00", MalformedPacket, id="type 0 [2.1.2]"),
        pytest.param("20 02 00 00", ProtocolError, id="CONNACK from a client [2.1.3-1]"),
        pytest.param("36 04 0001 61 00", MalformedPacket, id="PUBLISH QoS 3 [3.3.1-4]"),
        pytest.param("30 04 0001 23 00", TopicNameInvalid, id="topic # [3.3.2-2]"),
        pytest.param("30 04 0005 61 00 c000", MalformedPacket, id="topic runs into the next packet"),
        pytest.param("30 06 0001 61 05 0101 c000", MalformedPacket, id="properties run into the next packet"),
        pytest.param("32 03 0001 61 0001 00", MalformedPacket, id="identifier runs into the next packet"),
    ],
)
def test_a_breach_ends_it(raw: str, error: type[MqttError]) -> None:
    reader = connected()
    assert reader.feed(PING + bytes.fromhex(raw)) == [Pingreq()]
    assert type(reader.error) is error
    first = reader.error
    assert reader.feed(PING) == []
    assert reader.error is first
    assert not reader.partial


def test_a_length_is_refused_before_its_fifth_byte() -> None:
    reader = connected()
    assert reader.feed(b"\x30\xff\xff\xff") == []
    assert reader.error is None and reader.partial
    reader.feed(b"\xff")
    assert type(reader.error) is MalformedPacket


@pytest.mark.parametrize("body", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_lengths_of_one_to_four_bytes_1_5_5_1(body: int) -> None:
    reader = connected(V4)
    payload = bytes(max(0, body - 3))
    packets = reader.feed(encode(Publish("a", payload), V4) + PING)
    assert packets == [Publish("a", payload), Pingreq()]


# ---- Maximum Packet Size ---------------------------------------------------------------------


def test_maximum_packet_size_counts_the_whole_packet() -> None:
    fits, too_long = encode(Publish("a", bytes(194)), V4), encode(Publish("a", bytes(195)), V4)
    assert (len(fits), len(too_long)) == (200, 201)
    assert len(connected(V4, maximum_packet_size=200).feed(fits)) == 1
    reader = connected(V4, maximum_packet_size=200)
    assert reader.feed(PING + too_long) == [Pingreq()]
    assert type(reader.error) is PacketTooLarge


def test_too_large_is_known_from_the_header_alone() -> None:
    reader = connected(maximum_packet_size=200)
    assert reader.feed(b"\x30\xc8") == []
    assert reader.error is None
    reader.feed(b"\x01")
    assert type(reader.error) is PacketTooLarge
    assert not reader.partial


# ---- what is held ----------------------------------------------------------------------------


def test_partial() -> None:
    reader = PacketReader()
    assert not reader.partial
    for byte in CONNECT_5[:-1]:
        assert reader.feed(bytes((byte,))) == []
        assert reader.partial
    assert reader.feed(CONNECT_5[-1:] + b"\xc0") == [Connect("c")]
    assert reader.partial
    assert reader.feed(b"") == []
    assert reader.feed(b"\x00") == [Pingreq()]
    assert not reader.partial


@pytest.mark.parametrize("chunk", [1, 7, 1460, 65_536])
def test_a_large_packet_costs_linear_time(chunk: int) -> None:
    publish = Publish("a", bytes(range(256)) * 4096)
    raw, reader, packets = encode(publish, V5), connected(), []
    started = time.perf_counter()
    for at in range(0, len(raw), chunk):
        packets += reader.feed(raw[at : at + chunk])
    # Copying all that is held at every chunk would move 500 GB at one byte a chunk.
    assert time.perf_counter() - started < 20
    assert packets == [publish]


def test_many_small_packets_in_one_chunk() -> None:
    packets = [
        Publish(f"t/{number % 50}", b"x" * (number % 200), 1, packet_id=number + 1) for number in range(2000)
    ]
    raw = b"".join(encode(packet, V5) for packet in packets)
    assert connected().feed(raw) == packets


def test_what_was_read_does_not_hang_on_the_chunk() -> None:
    reader, chunk = connected(), encode(Publish("a", b"payload"), V5)
    (packet,) = reader.feed(chunk)
    assert isinstance(packet, Publish) and type(packet.payload) is bytes


# ---- names -----------------------------------------------------------------------------------


def test_readers_share_topic_names() -> None:
    names = TopicNames()
    read = []
    for version in (V4, V5):
        reader = PacketReader(names=names)
        reader.feed(encode(Connect("c", version), version))
        read += reader.feed(encode(Publish("some/topic"), version) * 2)
    _, second, *others = read
    assert isinstance(second, Publish)
    assert all(isinstance(other, Publish) and other.topic_name is second.topic_name for other in others)
    assert names == {b"some/topic": "some/topic"}


def test_names_stay_bounded_whatever_clients_send() -> None:
    names = TopicNames()
    reader = PacketReader(names=names)
    reader.feed(CONNECT_4)
    for number in range(10_000):
        reader.feed(encode(Publish(f"t/{number}"), V4))
        assert len(names) <= TopicNames.MAXIMUM
    assert reader.error is None


@pytest.mark.parametrize("strict", [True, False])
def test_disallowed_code_points_are_one_setting(strict: bool) -> None:
    for packet in (Publish("a\x01"), Subscribe(1, [SubscribeRequest("a\x01")])):
        reader = PacketReader(strict=strict)
        reader.feed(CONNECT_5)
        assert reader.feed(encode(packet, V5)) == ([] if strict else [packet])
        assert (type(reader.error) is MalformedPacket) == strict


@pytest.mark.parametrize("behind", ["", "ff", "ffff0f", "00", "7f"])
def test_a_property_length_that_is_cut_off_does_not_go_on_in_the_next_packet(behind: str) -> None:
    """What follows in the same chunk changes nothing, not even what the log says."""
    raw = bytes.fromhex("32 09 0003 612f62 0001 ffff" + behind)
    reader = connected()
    assert reader.feed(raw) == []
    assert type(reader.error) is MalformedPacket
    assert str(reader.error) == "byte cut off"


@pytest.mark.parametrize("cut", range(1, 11))
def test_a_connect_that_is_too_large_is_refused_by_its_version(cut: int) -> None:
    """Wherever it is cut: the refusal waits for the level and no longer [3.2.2.3.6]."""
    raw = bytes.fromhex("10 ff ff 7f 0004 4d515454 05")
    reader = PacketReader(maximum_packet_size=1000)
    assert reader.feed(raw[:cut]) == [] and reader.error is None and reader.partial
    assert reader.feed(raw[cut:]) == []
    assert type(reader.error) is PacketTooLarge and reader.version is V5


# ---- acknowledgements of two bytes -----------------------------------------------------------


@pytest.mark.parametrize("first", [0x40, 0x50, 0x62, 0x70, 0x41, 0x60, 0x72])
@pytest.mark.parametrize("packet_id", [0, 1, 255, 256, 0x1234, 65535])
@pytest.mark.parametrize("version", [V3, V4, V5])
def test_short_acknowledgements_are_what_the_table_makes_of_them(
    first: int, packet_id: int, version: Version
) -> None:
    reader, body = connected(version), packet_id.to_bytes(2, "big")
    found = reader.feed(bytes((first, 2)) + body)
    try:
        wanted = decode(first >> 4, first & 0x0F, body, version)
    except MqttError as error:
        assert (found, type(reader.error)) == ([], type(error))
    else:
        assert (found, reader.error) == ([wanted], None)


def test_after_each_part_the_rest_is_offered_unless_it_begins_with_what_is_never_taken() -> None:
    publish = encode(Publish("t", b"x" * 5000), V5)
    for apart, offered in ((-1, 3), (3, 1), (12, 2)):
        reader, offers = connected(), []
        reader.apart = apart

        def take(rest: bytes, offers: list[int] = offers) -> bytes:
            offers.append(len(rest))
            return rest

        parts = reader.parts(publish * 3 + PING, take)
        assert [type(packet) for packets in parts for packet in packets] == [Publish] * 3 + [Pingreq]
        assert len(offers) == offered
