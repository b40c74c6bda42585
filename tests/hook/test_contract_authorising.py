"""The contract of hooks: authorising hooks, which fail closed."""

from __future__ import annotations

from typing import Any

import pytest

from broker import (
    AuthStep,
    Config,
    Message,
    MqttError,
    NotAuthorized,
    Protocol,
    ReasonCode,
    SubscribeRequest,
    Version,
)
from broker.packet.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.hook.made import QUICK, boom, hangs, hook, recorder, refusing
from tests.peer import Peer, memory_broker, run_async, settle


@run_async
async def test_12__on_connect_fails_fast_and_early() -> None:
    calls: list[str] = []

    def judge(client: Any, packet: Connect) -> None:
        calls.append("judge")
        if packet.password == b"bad":
            raise NotAuthorized("no")

    async with memory_broker(
        hooks=[hook(on_connect=judge), recorder(calls, "later", "on_connect")]
    ) as broker:
        first, second = Peer(broker), Peer(broker)
        await first.connect("c")
        assert (await second.connect("c", password=b"bad")).reason_code == ReasonCode.NOT_AUTHORIZED
        await second.expect_end()
        await first.expect_nothing()
        third = Peer(broker)
        third.send_raw(bytes.fromhex("10 03 00 04 4d"))  # a CONNECT that is none: no hook is asked
        await third.expect_end()
    assert calls == ["judge", "later.on_connect", "judge"]


@pytest.mark.parametrize(
    ("raised", "in_5", "in_3"),
    [
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 0x86, 4),
        (ReasonCode.NOT_AUTHORIZED, 0x87, 5),
        (ReasonCode.BANNED, 0x8A, 5),
        (ReasonCode.QUOTA_EXCEEDED, 0x97, 3),
        (ReasonCode.CONNECTION_RATE_EXCEEDED, 0x9F, None),
        (ReasonCode.TOPIC_FILTER_INVALID, 0x80, None),
    ],
)
@run_async
async def test_13__the_code_in_connack(raised: ReasonCode, in_5: int, in_3: int | None) -> None:
    error = MqttError("no", raised)
    async with memory_broker(hooks=[hook(on_connect=refusing(error))]) as broker:
        assert (await Peer(broker).connect("c")).reason_code == in_5
        old = Peer(broker, Version.MQTT_3_1_1)
        old.send(Connect("c", Version.MQTT_3_1_1))
        answer = await old.recv()
        assert answer == (None if in_3 is None else Connack(False, in_3))


@pytest.mark.parametrize("failure", [boom, hangs])
@run_async
async def test_14__on_connect_that_fails_refuses(failure: Any) -> None:
    async with memory_broker(QUICK, hooks=[hook(on_connect=failure)]) as broker:
        peer, old = Peer(broker), Peer(broker, Version.MQTT_3_1_1)
        assert (await peer.connect("c")).reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        await peer.expect_end()
        old.send(Connect("c", Version.MQTT_3_1_1))
        await old.expect_end()
        assert not broker.clients


@run_async
async def test_15__anonymous_only_where_nobody_authenticates() -> None:
    never = Config(protocol=Protocol(anonymous="never"))
    async with memory_broker(never) as broker:
        assert (await Peer(broker).connect("c")).reason_code == ReasonCode.NOT_AUTHORIZED
    async with memory_broker(never, hooks=[hook(on_connect=lambda *args: None)]) as broker:
        assert (await Peer(broker).connect("c")).reason_code == 0
    async with memory_broker(never, hooks=[hook(on_auth=lambda *args: AuthStep(done=True))]) as broker:
        assert (await Peer(broker).connect("c")).reason_code == ReasonCode.NOT_AUTHORIZED
        accepted = await Peer(broker).connect("c", properties={"authentication_method": "M"})
        assert accepted.reason_code == 0


@run_async
async def test_16__another_client_id() -> None:
    def rename(client: Any, packet: Connect) -> None:
        packet.client_id = "given"

    async with memory_broker(hooks=[hook(on_connect=rename)]) as broker:
        connack = await Peer(broker).connect("asked")
        assert connack.properties["assigned_client_identifier"] == "given"
        assert list(broker.clients) == ["given"]


@run_async
async def test_17__user_properties_and_attributes() -> None:
    seen: list[Any] = []

    def greet(client: Any, packet: Connect) -> None:
        client.user_properties.append(("hello", "you"))
        client.attributes["mine"] = 7

    made = hook(on_connect=greet, on_disconnect=lambda client, *args: seen.append(client.attributes["mine"]))
    async with memory_broker(hooks=[made]) as broker:
        peer = Peer(broker)
        assert (await peer.connect("c")).properties["user_property"] == [("hello", "you")]
    assert seen == [7]


@run_async
async def test_18__on_auth_first_provider() -> None:
    asked: list[Any] = []

    def step(name: str, known: str) -> Any:
        def on_auth(client: Any, method: str, data: bytes | None) -> AuthStep | None:
            asked.append((name, method, data))
            return AuthStep(done=data == b"2", data=b"more") if method == known else None

        return on_auth

    async with memory_broker(hooks=[hook(on_auth=step("a", "A")), hook(on_auth=step("b", "B"))]) as broker:
        peer = Peer(broker)
        method = {"authentication_method": "B"}
        peer.send(Connect("c", properties={**method, "authentication_data": b"1"}))
        assert (await peer.expect(Auth)).reason_code == ReasonCode.CONTINUE_AUTHENTICATION
        peer.send(Auth(0x18, {**method, "authentication_data": b"2"}))
        assert (await peer.expect(Connack)).reason_code == 0
        refused = await Peer(broker).connect("d", properties={"authentication_method": "C"})
        assert refused.reason_code == ReasonCode.BAD_AUTHENTICATION_METHOD
    assert asked == [
        *(("a", "B", b"1"), ("b", "B", b"1"), ("a", "B", b"2"), ("b", "B", b"2")),
        *(("a", "C", None), ("b", "C", None)),
    ]


@run_async
async def test_19__auth_step_accepts_and_re_authenticates() -> None:
    again: list[bool] = []

    def on_auth(client: Any, method: str, data: bytes | None) -> AuthStep:
        again.append(client.authenticated)
        return AuthStep(done=True, data=b"bye")

    async with memory_broker(hooks=[hook(on_auth=on_auth)]) as broker:
        peer = Peer(broker)
        method = {"authentication_method": "M"}
        connack = await peer.connect("c", properties=method)
        assert connack.properties["authentication_data"] == b"bye"
        peer.send(Auth(0x19, method))
        assert (await peer.expect(Auth)).reason_code == ReasonCode.SUCCESS
    assert again == [False, True]


@run_async
async def test_20__on_auth_that_fails_refuses() -> None:
    def on_auth(client: Any, method: str, data: bytes | None) -> AuthStep:
        return boom() if client.authenticated or data == b"bad" else AuthStep(done=True)

    async with memory_broker(hooks=[hook(on_auth=on_auth)]) as broker:
        method = {"authentication_method": "M"}
        refused = await Peer(broker).connect("c", properties={**method, "authentication_data": b"bad"})
        assert refused.reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        peer = Peer(broker)
        await peer.connect("c", properties=method)
        peer.send(Auth(0x19, method))
        assert (await peer.expect(Disconnect)).reason_code == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


@run_async
async def test_21__on_publish_once_per_message_and_for_wills() -> None:
    asked: list[str] = []

    def note(client: Any, message: Message) -> None:
        asked.append(f"{client.client_id} {message.topic_name} {message.qos}")

    calls: list[str] = []
    hooks = [
        hook(on_publish=note),
        hook(on_publish=refusing(NotAuthorized())),
        recorder(calls, "c", "on_publish"),
    ]
    async with memory_broker(hooks=hooks[:1]) as broker:
        peer = Peer(broker)
        await peer.connect("p", will=Will("will", b"", 1))
        for qos in (0, 1):
            await peer.publish("t", qos=qos)
        peer.send(*[Publish("t", qos=2, packet_id=7)] * 3, Pubrel(7))
        for _ in range(3):
            await peer.expect(Pubrec)
        peer.send(Disconnect(0x04))
        await settle(broker, "p")
    assert asked == ["p t 0", "p t 1", "p t 2", "p will 1"]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        assert await peer.publish("t", qos=1) == ReasonCode.NOT_AUTHORIZED
    assert calls == []


@pytest.mark.parametrize(
    ("raised", "in_5", "goes_on_in_3"),
    [
        (ReasonCode.NOT_AUTHORIZED, 0x87, True),
        (ReasonCode.TOPIC_NAME_INVALID, 0x90, True),
        (ReasonCode.BANNED, 0x80, True),
        (ReasonCode.QUOTA_EXCEEDED, 0x97, False),
        (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, 0x83, False),
    ],
)
@run_async
async def test_22__a_refused_publish(raised: ReasonCode, in_5: int, goes_on_in_3: bool) -> None:
    error = MqttError("no", raised)
    async with memory_broker(hooks=[hook(on_publish=refusing(error))]) as broker:
        peer, watcher, old = Peer(broker), Peer(broker), Peer(broker, Version.MQTT_3_1_1)
        await watcher.connect("w")
        await watcher.subscribe("#")
        await peer.connect("p")
        for qos in (1, 2):
            assert await peer.publish("t", b"x", qos=qos, retain=True) == in_5
        await peer.publish("t", b"x", retain=True)
        await peer.expect_nothing()
        await old.connect("o")
        old.send(Publish("t", b"x", 1, packet_id=1))
        assert await old.recv() == (Puback(1) if goes_on_in_3 else None)
        await watcher.subscribe("t")  # nothing was retained
        await watcher.expect_nothing()


@pytest.mark.parametrize("failure", [boom, hangs])
@run_async
async def test_23__on_publish_that_fails_refuses(failure: Any) -> None:
    async with memory_broker(QUICK, hooks=[hook(on_publish=failure)]) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        for qos in (1, 2):
            assert await peer.publish("t", qos=qos) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


@run_async
async def test_24__on_subscribe_filter_by_filter() -> None:
    def judge(client: Any, request: SubscribeRequest) -> SubscribeRequest:
        codes = {"no": ReasonCode.NOT_AUTHORIZED, "odd": ReasonCode.BANNED}
        if request.topic_filter in codes:
            raise MqttError("no", codes[request.topic_filter])
        if request.topic_filter == "fails":
            boom()
        return SubscribeRequest("mine/" + request.topic_filter, 1)

    def lower(client: Any, request: SubscribeRequest) -> SubscribeRequest:
        assert request.topic_filter.startswith("mine/")
        return SubscribeRequest(request.topic_filter, 0)

    async with memory_broker(hooks=[hook(on_subscribe=judge), hook(on_subscribe=lower)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        suback = await peer.subscribe("a", "no", "odd", "fails", "b", qos=2)
        assert suback.reason_codes == [0, 0x87, 0x80, 0x83, 0]
        peer.send(Publish("mine/b", b"x", 2, packet_id=1), Publish("a"))
        assert (await peer.expect(Pubrec)).reason_code == 0
        peer.send(Pubrel(1))
        assert (await peer.expect(Publish)).qos == 0


@run_async
async def test_25__on_unsubscribe_filter_by_filter() -> None:
    def judge(client: Any, topic_filter: str) -> None:
        if topic_filter == "keep":
            raise NotAuthorized("no")

    async with memory_broker(hooks=[hook(on_unsubscribe=judge)]) as broker:
        for version, codes, left in ((Version.MQTT_5, [0, 0x87], 1), (Version.MQTT_3_1_1, [], 0)):
            peer = Peer(broker, version)
            await peer.connect("c")
            await peer.subscribe("go", "keep")
            peer.send(Unsubscribe(2, ["go", "keep"]))
            assert (await peer.expect(Unsuback)).reason_codes == codes
            peer.send(Publish("go"), Publish("keep"))
            for _ in range(left):
                assert (await peer.expect(Publish)).topic_name == "keep"
            await peer.expect_nothing()
            peer.send(Disconnect())
            await settle(broker, "c")


@pytest.mark.parametrize("answer", [lambda *args: False, lambda *args: None, lambda *args: 1, boom])
@run_async
async def test_26__can_read_must_say_true(answer: Any) -> None:
    def judge(client_id: str, topic_name: str) -> Any:
        return answer() if client_id == "c" and topic_name == "no" else True

    asked: list[str] = []
    hooks = [recorder(asked, "a", "can_read"), hook(can_read=judge)]
    async with memory_broker(hooks=hooks) as broker:
        await broker.publish("no", b"old", retain=True)
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c")
        await other.connect("o")
        await peer.subscribe("+")
        await other.subscribe("+")
        assert (await other.expect(Publish)).payload == b"old"
        other.send(Publish("no", b"x"), Publish("yes"))
        assert (await peer.expect(Publish)).topic_name == "yes"
        assert [(await other.expect(Publish)).topic_name for _ in range(2)] == ["no", "yes"]
    assert len(asked) == 6
