"""paho-mqtt against a real broker, in every version and over every transport."""

from __future__ import annotations

import os

import pytest
from paho.mqtt.client import MQTTv5, MQTTv31, MQTTv311
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker import BadUserNameOrPassword, HookBase, MqttError, ReasonCode
from tests.end_to_end.certificates import Certificates
from tests.end_to_end.conftest import Serve
from tests.end_to_end.paho import TRANSPORTS, Paho, connected, properties, session
from tests.end_to_end.running import WAIT, Recorder, Running, take

VERSIONS = pytest.mark.parametrize(
    "version", [MQTTv31, MQTTv311, MQTTv5], ids=["mqtt 3.1", "mqtt 3.1.1", "mqtt 5"]
)
MODERN = pytest.mark.parametrize("version", [MQTTv311, MQTTv5], ids=["mqtt 3.1.1", "mqtt 5"])


def lasting(version: int, **values: object) -> dict[str, object]:
    """What `connected` needs for a session that outlives its connection, and to come back to one."""
    if version == MQTTv5:
        return {"clean_start": False, "properties": session(3600, **values)}
    return {"clean_session": False}


@pytest.mark.parametrize("scheme", TRANSPORTS)
@VERSIONS
def test_messages_go_both_ways(serve: Serve, certificates: Certificates, scheme: str, version: int) -> None:
    """Empty, binary and larger than any one read or frame; each at the lower QoS of the two sides."""
    running = serve(scheme)
    payloads = [b"", b"\0\xff\r\n", "Grüße".encode(), os.urandom(200_000)]
    trust = certificates if scheme in ("tls", "wss") else None
    with (
        connected(running, "sub", version, scheme, certificates=trust) as subscriber,
        connected(running, "pub", version, scheme, certificates=trust) as publisher,
    ):
        for qos in range(3):
            assert subscriber.subscribe(f"granted/{qos}/#", qos) == qos
        sent = [(granted, qos, payload) for granted in range(3) for qos in range(3) for payload in payloads]
        for granted, qos, payload in sent:
            assert publisher.publish(f"granted/{granted}/{qos}", payload, qos) == 0
        found = subscriber.take(len(sent))
        for granted in range(3):
            for qos in range(3):
                topic_name = f"granted/{granted}/{qos}"
                here = [message for message in found if message.topic == topic_name]
                assert [message.payload for message in here] == payloads
                assert {message.qos for message in here} == {min(granted, qos)}
                assert not any(message.retain or message.dup for message in here)
        subscriber.unsubscribe("granted/2/#")
        publisher.publish("granted/2/0", b"to nobody", 1)
        subscriber.nothing_more()


@VERSIONS
def test_retained_messages(broker: Running, version: int) -> None:
    with connected(broker, "pub", version) as publisher:
        publisher.publish("state/a", b"old", 1, retain=True)
        publisher.publish("state/a", b"new", 2, retain=True)
        publisher.publish("state/b", b"gone", 1, retain=True)
        publisher.publish("state/b", b"", 1, retain=True)
    with connected(broker, "sub", version) as subscriber:
        subscriber.subscribe("state/+")
        message = subscriber.take()[0]
        assert (message.topic, message.payload, message.qos, message.retain) == ("state/a", b"new", 2, True)
        subscriber.nothing_more()


def test_retain_handling_no_local_and_retain_as_published(broker: Running) -> None:
    with connected(broker, "other") as other, connected(broker, "me") as me:
        other.publish("r/1", b"kept", 1, retain=True)
        assert me.subscribe("r/1", options=SubscribeOptions(1, retainHandling=2)) == 1
        me.nothing_more()
        options = SubscribeOptions(1, noLocal=True, retainAsPublished=True, retainHandling=1)
        me.subscribe("r/+", options=options)
        assert me.payloads(1) == [b"kept"]
        me.subscribe("r/+", options=options)
        me.publish("r/2", b"mine", 1)
        other.publish("r/3", b"theirs", 1, retain=True)
        message = me.take()[0]
        assert (message.payload, message.retain) == (b"theirs", True)
        me.nothing_more()


@MODERN
def test_a_will_is_published_for_a_lost_connection_only(broker: Running, version: int) -> None:
    with connected(broker, "watcher", version) as watcher:
        watcher.subscribe("wills/#")
        for client_id, cut in (("polite", False), ("lost", True)):
            will = {"topic": f"wills/{client_id}", "payload": b"gone", "qos": 2, "retain": True}
            with connected(broker, client_id, version, will=will) as client:
                if cut:
                    client.cut()
            broker.wait_gone(client_id)
        message = watcher.take()[0]
        assert (message.topic, message.payload, message.qos) == ("wills/lost", b"gone", 2)
        watcher.nothing_more()
    with connected(broker, "late", version) as late:
        late.subscribe("wills/#")
        assert [(m.topic, m.retain) for m in late.take()] == [("wills/lost", True)]


def test_a_will_with_delay_and_properties(broker: Running) -> None:
    props = properties("WILLMESSAGE", WillDelayInterval=20, UserProperty=("k", "v"), ContentType="text/plain")
    will = {"topic": "will", "payload": b"gone", "properties": props}
    with connected(broker, "watcher") as watcher:
        watcher.subscribe("will")
        for comes_back in (True, False):
            with connected(broker, "me", will=will, clean_start=False, properties=session(100)) as me:
                me.cut()
                broker.wait_gone("me")
                broker.advance(19)
                watcher.nothing_more()
                if comes_back:
                    assert me.reconnect().session_present
                    broker.advance(19)
                    watcher.nothing_more()
                else:
                    broker.advance(2)
                    message = watcher.take()[0]
                    assert message.payload == b"gone"
                    assert message.properties.UserProperty == [("k", "v")]
                    assert message.properties.ContentType == "text/plain"
                    assert not hasattr(message.properties, "WillDelayInterval")


@MODERN
def test_a_session_keeps_what_it_missed_in_order(broker: Running, version: int) -> None:
    with connected(broker, "me", version, **lasting(version)) as me:
        assert not me.connack.session_present
        me.subscribe("a/#", 2)
    with connected(broker, "pub", version) as publisher:
        publisher.publish("a", b"at most once", 0)
        for number in range(50):
            publisher.publish("a/b", str(number), 1 + number % 2)
    with connected(broker, "me", version, **lasting(version)) as me:
        assert me.connack.session_present
        found = me.nothing_more_but(50)
        for qos in (1, 2):  # paho hands QoS 2 over when it is released, which is later than it came
            assert [int(m.payload) for m in found if m.qos == qos] == list(range(qos - 1, 50, 2))
    end = {"clean_start": True} if version == MQTTv5 else {"clean_session": True}
    with connected(broker, "me", version, **end) as me:
        assert not me.connack.session_present
        broker.publish("a", b"nobody listens", qos=1)
        me.nothing_more()


@MODERN
def test_a_subscriber_gets_again_what_it_did_not_acknowledge(broker: Running, version: int) -> None:
    """QoS 1 with DUP; QoS 2, whose payload paho had handed over, not a second time."""
    with connected(broker, "me", version, manual_ack=True, **lasting(version)) as me:
        me.subscribe("a/#", 2)
        for number in range(10):
            broker.publish("a/b", str(number), qos=1 + number % 2)
        assert {int(payload) for payload in me.payloads(10)} == set(range(10))
        me.cut()
        broker.wait_gone("me")
        broker.publish("a/b", "10", qos=1)
        assert me.reconnect().session_present
        again = me.take(6)
        assert [(int(m.payload), m.dup) for m in again] == [
            *((n, True) for n in range(0, 10, 2)),
            (10, False),
        ]
        for message in again:
            me.client.ack(message.mid, message.qos)
    with connected(broker, "me", version, **lasting(version)) as me:
        me.nothing_more()


@MODERN
def test_a_subscriber_whose_acknowledgements_get_lost(broker: Running, version: int) -> None:
    """What paho acknowledged into a dead wire comes again at QoS 1 and exactly once at QoS 2."""
    relay = broker.relay()
    with connected(broker, "me", version, port=relay.port, **lasting(version)) as me:
        me.subscribe("a/#", 2)
        relay.muted.add("acks")
        for number in range(20):
            broker.publish("a/b", str(number), qos=1 + number % 2)
        assert [int(payload) for payload in me.payloads(10)] == list(range(0, 20, 2))
        relay.cut()
        broker.wait_gone("me")
        take(me.ends, 1)
        assert me.reconnect().session_present
        found = me.take(20)
        assert {int(m.payload) for m in found if m.qos == 2} == set(range(1, 20, 2))
        assert {int(m.payload) for m in found if m.qos == 1 and m.dup} == set(range(0, 20, 2))
        me.nothing_more()


@pytest.mark.parametrize("qos", [1, 2])
@MODERN
def test_a_publisher_that_loses_the_answers(serve: Serve, version: int, qos: int) -> None:
    """It sends again over the next connection: QoS 1 at least once, QoS 2 exactly once."""
    recorder = Recorder()
    running = serve(hooks=[recorder])
    relay = running.relay()
    wanted = [str(number).encode() for number in range(15)]
    with (
        connected(running, "sub", version) as subscriber,
        connected(running, "pub", version, port=relay.port, **lasting(version)) as publisher,
    ):
        subscriber.subscribe("a", 2)
        relay.muted.add("answers")
        infos = [publisher.client.publish("a", payload, qos) for payload in wanted]
        running.wait_until(lambda: len(recorder.published) == len(wanted), "all of them, taken in")
        assert not any(info.is_published() for info in infos)
        relay.cut()
        running.wait_gone("pub")
        take(publisher.ends, 1)
        assert publisher.reconnect().session_present
        for info in infos:
            info.wait_for_publish(10)
            assert info.is_published()
        if qos == 2:
            assert subscriber.payloads(len(wanted)) == wanted
        else:
            assert subscriber.payloads(2 * len(wanted)) == wanted * 2
        subscriber.nothing_more()


def test_a_second_connection_takes_over(broker: Running) -> None:
    with connected(broker, "same") as first, connected(broker, "same") as second:
        assert take(first.ends, 1)[0].value == ReasonCode.SESSION_TAKEN_OVER
        second.nothing_more()


def test_properties_travel_with_a_message(broker: Running) -> None:
    sent = {
        "PayloadFormatIndicator": 1,
        "MessageExpiryInterval": 1000,
        "ContentType": "application/json",
        "ResponseTopic": "answers/1",
        "CorrelationData": b"\0\1\xff",
        "UserProperty": [("k", "v"), ("k", "w"), ("", "")],
    }
    with connected(broker, "sub") as subscriber, connected(broker, "pub") as publisher:
        subscriber.subscribe("questions", 1)
        assert publisher.publish("questions", b"{}", 1, **sent) == 0
        got = subscriber.take()[0].properties
        assert 1000 - WAIT <= got.MessageExpiryInterval <= sent.pop("MessageExpiryInterval")
        assert {name: getattr(got, name) for name in sent} == sent
        subscriber.publish(got.ResponseTopic, b"nobody", 1, CorrelationData=got.CorrelationData)
        publisher.subscribe("answers/#")
        assert subscriber.publish(got.ResponseTopic, b"42", 2, CorrelationData=got.CorrelationData) == 0
        answer = publisher.take()[0]
        assert (answer.payload, answer.properties.CorrelationData) == (b"42", b"\0\1\xff")


def test_message_expiry(broker: Running) -> None:
    with connected(broker, "me", clean_start=False, properties=session(3600)) as me:
        me.subscribe("a")
    with connected(broker, "pub") as publisher:
        publisher.publish("a", b"short", 1, MessageExpiryInterval=10)
        publisher.publish("a", b"long", 1, MessageExpiryInterval=100)
        publisher.publish("a", b"for ever", 1)
        publisher.publish("a", b"kept for a while", 1, retain=True, MessageExpiryInterval=10)
    broker.advance(30)
    with connected(broker, "me", clean_start=False, properties=session(3600)) as me:
        expiring, other = me.take(2)
        assert expiring.payload == b"long"
        assert 60 <= expiring.properties.MessageExpiryInterval <= 70
        assert other.payload == b"for ever"
        assert not hasattr(other.properties, "MessageExpiryInterval")
        me.nothing_more()
    with connected(broker, "late") as late:
        late.subscribe("a")
        late.nothing_more()


def test_session_expiry(broker: Running) -> None:
    for seconds, present in ((0, False), (9, False), (11, True)):
        with connected(broker, "me", clean_start=True, properties=session(seconds)):
            pass
        broker.wait_gone("me")
        broker.advance(10)
        with connected(broker, "me", clean_start=False) as me:
            assert me.connack.session_present is present, seconds


def test_subscription_identifiers(broker: Running) -> None:
    with connected(broker, "me") as me:
        for topic_filter, identifier in (("a/#", 1), ("a/+", 268_435_455), ("#", None)):
            props = {} if identifier is None else {"SubscriptionIdentifier": identifier}
            me.subscribe(topic_filter, options=SubscribeOptions(2), **props)
        me.publish("a/b", b"1", 2)
        me.publish("b", b"2", 1)
        first, second = me.take(2)
        assert sorted(first.properties.SubscriptionIdentifier) == [1, 268_435_455]
        assert not hasattr(second.properties, "SubscriptionIdentifier")


def test_topic_aliases_both_ways(broker: Running) -> None:
    """paho leaves the resolving of what it gets to us."""
    with (
        connected(broker, "sub", properties=properties("CONNECT", TopicAliasMaximum=2)) as subscriber,
        connected(broker, "pub") as publisher,
    ):
        assert publisher.connack.properties.TopicAliasMaximum >= 2
        subscriber.subscribe("#")
        publisher.publish("long/name/1", b"1", 1, TopicAlias=1)
        publisher.publish("long/name/2", b"2", 1, TopicAlias=2)
        publisher.publish("", b"3", 1, TopicAlias=1)
        publisher.publish("", b"4", 1, TopicAlias=2)
        found = subscriber.take(4)
        assert [message.payload for message in found] == [b"1", b"2", b"3", b"4"]
        assert [message.topic for message in found] == ["long/name/1", "long/name/2", "", ""]
        first, second, *again = [message.properties.TopicAlias for message in found]
        assert {first, second} == {1, 2}
        assert again == [first, second]


def test_a_shared_subscription_gives_each_message_to_one(broker: Running) -> None:
    with (
        connected(broker, "one") as one,
        connected(broker, "two") as two,
        connected(broker, "all") as everything,
    ):
        for client in (one, two):
            client.subscribe("$share/group/jobs/#", 1)
        everything.subscribe("jobs/#", 1)
        for number in range(40):
            broker.publish("jobs/x", str(number), qos=1)
        assert [int(payload) for payload in everything.payloads(40)] == list(range(40))
        found = one.nothing_more_but(20) + two.nothing_more_but(20)
        assert sorted(int(message.payload) for message in found) == list(range(40))


class Doorman(HookBase):
    """Asks for a password, and refuses topics that begin with `no/`."""

    def on_connect(self, client: object, packet: object) -> None:
        if (packet.user_name, packet.password) != ("user", b"secret"):
            raise BadUserNameOrPassword("no")

    def on_subscribe(self, client: object, request: object) -> object:
        if request.topic_filter.startswith("no/"):
            raise MqttError("no", ReasonCode.NOT_AUTHORIZED)
        return request

    def on_publish(self, client: object, message: object) -> None:
        if message.topic_name.startswith("no/"):
            raise MqttError("no", ReasonCode.NOT_AUTHORIZED)


@MODERN
def test_refusals_carry_their_reason_code(serve: Serve, version: int) -> None:
    running = serve(hooks=[Doorman()])
    stranger = Paho("stranger", version)
    stranger.client.username_pw_set("user", "guess")
    refused = stranger.connect("127.0.0.1", running.port())
    assert refused.reason.getName() == "Bad user name or password"
    stranger.close()

    friend = Paho("friend", version)
    friend.client.username_pw_set("user", "secret")
    assert friend.connect("127.0.0.1", running.port()).reason == 0
    mqtt5 = version == MQTTv5
    assert friend.subscribe("no/way", 1) == (ReasonCode.NOT_AUTHORIZED if mqtt5 else 0x80)
    assert friend.subscribe("yes", 1) == 1
    assert friend.publish("no/way", b"", 1) == (ReasonCode.NOT_AUTHORIZED if mqtt5 else 0)
    assert friend.publish("$SYS/mine", b"", 1) == (ReasonCode.TOPIC_NAME_INVALID if mqtt5 else 0)
    assert friend.publish("nobody", b"", 1) == (ReasonCode.NO_MATCHING_SUBSCRIBERS if mqtt5 else 0)
    # paho sends PUBREL after a PUBREC that refuses, which is answered for what it is
    assert friend.publish("no/way", b"", 2) == (ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if mqtt5 else 0)
    for qos in range(3):
        assert friend.publish("yes", b"", qos) == 0
    friend.nothing_more_but(3)
    friend.close()


def test_connack_announces_the_limits(serve: Serve) -> None:
    running = serve(
        receive_maximum=7,
        maximum_packet_size=5000,
        maximum_qos=1,
        retain_available=False,
        server_keep_alive=30,
        session_expiry_interval=60,
    )
    with connected(running, keepalive=90, properties=session(3600)) as client:
        got: Properties = client.connack.properties
        assert (got.ReceiveMaximum, got.MaximumPacketSize) == (7, 5000)
        assert (got.MaximumQoS, got.RetainAvailable) == (1, 0)
        assert (got.ServerKeepAlive, got.SessionExpiryInterval) == (30, 60)
        assert got.AssignedClientIdentifier
        client.publish("a", bytes(6000), 0)
        assert take(client.ends, 1)[0].value == ReasonCode.PACKET_TOO_LARGE


def test_a_client_that_hangs_is_closed(serve: Serve) -> None:
    """After one and a half times its Keep Alive, with its will."""
    recorder = Recorder()
    running = serve(hooks=[recorder])
    will = {"topic": "will", "payload": b"hung up"}
    with connected(running, "watcher", keepalive=0) as watcher:
        watcher.subscribe("will")
        with connected(running, "hangs", keepalive=10, will=will) as hangs:
            running.advance(14)
            watcher.nothing_more()
            running.advance(2)
            assert take(hangs.ends, 1)[0].value == ReasonCode.KEEP_ALIVE_TIMEOUT
            assert watcher.payloads(1) == [b"hung up"]
        running.wait_until(lambda: recorder.ended, "the hook that is told of its end")
        assert recorder.ended == [("hangs", ReasonCode.KEEP_ALIVE_TIMEOUT)]


@MODERN
def test_the_versions_meet(broker: Running, version: int) -> None:
    other = MQTTv311 if version == MQTTv5 else MQTTv5
    with connected(broker, "sub", version) as subscriber, connected(broker, "pub", other) as publisher:
        subscriber.subscribe("a/+", 1)
        publisher.publish("a/b", b"x", 2, **({"UserProperty": ("k", "v")} if other == MQTTv5 else {}))
        message = subscriber.take()[0]
        assert (message.topic, message.payload, message.qos) == ("a/b", b"x", 1)


def test_stop_says_so(serve: Serve) -> None:
    running = serve()
    with connected(running, "me") as me:
        running.run(running.broker.stop())
        assert take(me.ends, 1)[0].value == ReasonCode.SERVER_SHUTTING_DOWN
