"""The contract of hooks: one test or more for each numbered sentence of docs/hooks.md."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from broker import (
    AcknowledgeOnly,
    AuthStep,
    Broker,
    Capacity,
    Config,
    HookBase,
    Message,
    MqttError,
    NotAuthorized,
    Protocol,
    QuotaExceeded,
    ReasonCode,
    SubscribeRequest,
    Version,
)
from broker.errors import StoreError
from broker.hook.base import EVENTS, Hold
from broker.packet.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from broker.packet.reader import PacketReader
from tests.durable import broken_disk, recovered, until
from tests.peer import Clock, Peer, memory_broker, run_async, settle

CONTRACT = Path(__file__).parents[2] / "docs" / "hooks.md"


def hook(**methods: Any) -> HookBase:
    """A hook that overrides *methods*, given without `self`."""
    wrapped = {name: _without_self(method) for name, method in methods.items()}
    return type("Made", (HookBase,), wrapped)()


def _without_self(method: Any) -> Any:
    if asyncio.iscoroutinefunction(method):

        async def waits(self: HookBase, *args: Any) -> Any:
            return await method(*args)

        return waits
    return lambda self, *args: method(*args)


def recorder(calls: list[str], name: str, *events: str) -> HookBase:
    """A hook that writes down which of *events* it got, and passes on what it was given."""

    def note(event: str) -> Any:
        def call(*args: Any) -> Any:
            calls.append(f"{name}.{event}")
            return True if event == "can_read" else args[-1]

        return call

    return hook(**{event: note(event) for event in events})


def boom(*args: Any) -> Any:
    raise RuntimeError("boom")


OF_THE_STORE = ("on_store_failed", "on_store_recovered")
OF_A_MESSAGE = ("on_accepted", "on_taken_back")
TOLD_AT_ONCE = (
    *("on_taken", "on_delivered", "on_acknowledged", "on_connack", "on_session"),
    *("on_subscribed", "on_unsubscribed", "sys_values", "still_held", "on_taken_run"),
)
NEVER_WAITS = ("on_publish_deliver", "can_read", "on_dropped", *OF_A_MESSAGE, *OF_THE_STORE, *TOLD_AT_ONCE)


async def hangs(*args: Any) -> Any:
    await asyncio.Event().wait()


def refusing(error: MqttError) -> Any:
    def refuse(*args: Any) -> Any:
        raise error

    return refuse


QUICK = Config(capacity=Capacity(hook_timeout=0.02))


def test_every_sentence_has_a_test() -> None:
    numbers = {int(number) for number in re.findall(r"^(\d+)\. ", CONTRACT.read_text(), re.MULTILINE)}
    tested = {int(found) for name in globals() for found in re.findall(r"^test_(\d\d)__", name)}
    assert numbers == tested == set(range(1, max(numbers) + 1))


# ---- the rules for all


def test_01__a_hook_provides_what_it_overrides() -> None:
    assert HookBase().provides == frozenset()
    assert hook(on_publish=boom, can_read=boom).provides == {"on_publish", "can_read"}
    assert hook(**dict.fromkeys(EVENTS, boom)).provides == set(EVENTS)


@run_async
async def test_02__in_the_order_given() -> None:
    calls: list[str] = []
    hooks = [recorder(calls, name, "on_publish", "on_publish_received", "can_read") for name in "ab"]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        peer.send(Publish("t"))
        await peer.expect(Publish)
    assert calls == [
        *("a.on_publish", "b.on_publish", "a.on_publish_received", "b.on_publish_received"),
        *("a.can_read", "b.can_read"),
    ]


@run_async
async def test_03__init_before_the_first_listener() -> None:
    seen: list[Any] = []

    async def init(broker: Broker) -> None:
        seen.append((name := len(seen), broker.addresses, name))

    broker = memory_broker(hooks=[hook(init=init), hook(init=init)])
    async with broker:
        assert seen == [(0, [], 0), (1, [], 1)]
        assert broker.addresses == ["memory:"]


@run_async
async def test_04__init_that_raises_stops_the_start() -> None:
    stopped: list[str] = []
    good = [hook(stop=lambda name=name: stopped.append(name)) for name in "ab"]
    broker = memory_broker(hooks=[*good, hook(init=boom), hook(stop=lambda: stopped.append("never"))])
    with pytest.raises(RuntimeError, match="boom"):
        await broker.start()
    assert stopped == ["b", "a"]
    assert broker.addresses == []


@run_async
async def test_05__stop_last_first_after_the_last_connection(caplog: pytest.LogCaptureFixture) -> None:
    order: list[str] = []
    hooks = [
        hook(stop=lambda: order.append("a"), on_disconnect=lambda *args: order.append("gone")),
        hook(stop=boom),
        hook(stop=lambda: order.append("c")),
    ]
    async with memory_broker(hooks=hooks) as broker:
        await Peer(broker).connect("c")
    assert order == ["gone", "c", "a"]
    assert "failed in stop" in caplog.text


@run_async
async def test_06__a_plain_function_will_do() -> None:
    calls: list[str] = []
    waits = [event for event in EVENTS if event not in ("on_auth", "get_retained", *NEVER_WAITS)]
    async with memory_broker(hooks=[recorder(calls, "a", *waits)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        peer.send(Subscribe(1, [SubscribeRequest("t")]))
        await peer.expect(Suback)
        peer.send(Publish("t", b"x", retain=True))
        await peer.expect(Publish)
        peer.send(Unsubscribe(2, ["t"]))
        assert (await peer.expect(Unsuback)).reason_codes == [0]
        peer.send(Disconnect())
        await peer.expect_end()
        await settle(broker, "c")
    assert {call[2:] for call in calls} == set(waits) - {"on_session_resumed"}


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@run_async
async def test_07__once_per_delivery_never_waits() -> None:
    async def late(*args: Any) -> Any:
        return args[-1]

    drops: list[str] = []
    for method in ("on_publish_deliver", "can_read"):
        noted = hook(on_dropped=lambda client_id, message, reason: drops.append(reason))
        async with memory_broker(hooks=[hook(**{method: late}), noted]) as broker:
            peer = Peer(broker)
            await peer.connect("c")
            await peer.subscribe("t")
            peer.send(Publish("t"))
            await peer.expect_nothing()
    assert drops == ["hook_failed", "not_authorized"]


@run_async
async def test_07__a_coroutine_that_is_told_of_a_drop_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(hooks=[hook(on_dropped=hangs)]) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties={"maximum_packet_size": 20})
        await peer.subscribe("t")
        peer.send(Publish("t", b"x" * 20))
        await peer.expect_nothing()
    assert "failed in on_dropped" in caplog.text


@run_async
async def test_08__a_coroutine_has_its_time(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(QUICK, hooks=[hook(on_publish=hangs)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", qos=1) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert "failed in on_publish" in caplog.text


@pytest.mark.parametrize("event", [e for e in EVENTS if e not in (*OF_THE_STORE, "sys_values", "still_held")])
@pytest.mark.parametrize("failure", [boom, hangs])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_09__a_hook_that_fails_touches_nobody_else(
    event: str, failure: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Client "bad" alone meets the failure; the bystander's service goes on before, during and after."""

    def only_for_bad(*args: Any) -> Any:
        who = getattr(args[0], "client_id", args[0])
        bad = who in ("bad", "bad/t") or (event == "store_retained" and args[0].topic_name == "bad/t")
        if bad:
            return failure()
        if event in TOLD_AT_ONCE:
            return None
        return True if event == "can_read" else () if event == "get_retained" else args[-1]

    async def scene() -> None:
        async with memory_broker(QUICK, hooks=[hook(**{event: only_for_bad})]) as broker:
            bystander, bad = Peer(broker), Peer(broker)
            await bystander.connect("good")
            await bystander.subscribe("good/t")
            bad.send(Connect("bad", properties={"authentication_method": "M"} if event == "on_auth" else {}))
            bad.send(Subscribe(1, [SubscribeRequest("bad/t")]), Publish("bad/t", b"x", 1, True, packet_id=2))
            bad.send(Unsubscribe(3, ["bad/t"]), Disconnect(0x04))
            while await bad.recv() is not None:
                pass
            await settle(broker, "bad")
            await bystander.publish("good/t", b"still here", qos=0)
            assert (await bystander.expect(Publish)).payload == b"still here"
            assert list(broker.clients) == ["good"]

    asyncio.run(scene())
    never_called = (
        "on_session_resumed",
        "on_dropped",
        "on_acknowledged",
        "on_taken_back",
        "on_taken_run",
    )  # by this scene
    silent = event == "can_read" and failure is hangs  # a coroutine is simply not True
    if event not in never_called and not silent:
        assert "failed in" in caplog.text or "returned" in caplog.text


@run_async
async def test_10__only_the_client_it_was_called_for_waits() -> None:
    gate = asyncio.Event()

    async def slow(client: Any, message: Message) -> None:
        if client.client_id == "slow":
            await gate.wait()

    async with memory_broker(hooks=[hook(on_publish=slow)]) as broker:
        one, two = Peer(broker), Peer(broker)
        await one.connect("slow")
        await two.connect("quick")
        one.send(Publish("t", qos=1, packet_id=1))
        assert await two.publish("t", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS
        gate.set()
        assert (await one.expect(Puback)).packet_id == 1


@run_async
async def test_11__one_packet_after_the_other() -> None:
    seen: list[str] = []

    async def slow(client: Any, message: Message) -> None:
        seen.append(f"begin {message.topic_name}")
        await asyncio.sleep(0)
        seen.append(f"end {message.topic_name}")

    async with memory_broker(hooks=[hook(on_publish=slow)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        peer.send(Publish("1"), Publish("2"))
        await peer.expect_nothing()
    assert seen == ["begin 1", "end 1", "begin 2", "end 2"]


# ---- authorising hooks


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


# ---- transforming hooks


@pytest.mark.parametrize("qos", [0, 1, 2])
@run_async
async def test_27__on_publish_received_gives_the_message_to_use(qos: int) -> None:
    def change(client: Any, message: Message) -> Message:
        return message.with_(topic_name="x/" + message.topic_name, payload=message.payload.upper())

    def bad(client: Any, message: Message) -> Message:
        return message.with_(topic_name=message.topic_name.replace("hash", "#"))

    async with memory_broker(
        hooks=[hook(on_publish_received=change), hook(on_publish_received=bad)]
    ) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await peer.connect("p")
        await watcher.connect("w")
        await watcher.subscribe("#")
        assert await peer.publish("t", b"abc", qos=qos, retain=True) == 0
        live = await watcher.expect(Publish)
        assert (live.topic_name, live.payload) == ("x/t", b"ABC")
        await watcher.subscribe("x/t")
        assert (await watcher.expect(Publish)).retain
        if qos:
            assert await peer.publish("hash", qos=qos) == ReasonCode.TOPIC_NAME_INVALID
        await watcher.expect_nothing()


@pytest.mark.parametrize("failure", [boom, hangs, lambda *args: None])
@run_async
async def test_28__on_publish_received_that_fails_refuses(failure: Any) -> None:
    async with memory_broker(QUICK, hooks=[hook(on_publish_received=failure)]) as broker:
        peer = Peer(broker)
        await peer.connect("p")
        await peer.subscribe("t")
        assert await peer.publish("t", qos=1) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


@run_async
async def test_29__on_publish_deliver_changes_one_copy() -> None:
    order: list[str] = []

    def deliver(client_id: str, message: Message) -> Message:
        order.append(client_id)
        return message.with_(payload=client_id.encode())

    def read(client_id: str, topic_name: str) -> bool:
        return client_id != "c"

    async with memory_broker(hooks=[hook(on_publish_deliver=deliver), hook(can_read=read)]) as broker:
        peers = {name: Peer(broker) for name in "abc"}
        for name, peer in peers.items():
            await peer.connect(name)
            await peer.subscribe("t", qos=1)
        await broker.publish("t", b"x", qos=1)
        for name in "ab":
            assert (await peers[name].expect(Publish)).payload == name.encode()
        await peers["c"].expect_nothing()
    assert sorted(order) == ["a", "b"]


@pytest.mark.parametrize("failure", [boom, lambda *args: None, lambda *args: "text"])
@run_async
async def test_30__on_publish_deliver_that_fails_drops_the_copy(failure: Any) -> None:
    drops: list[Any] = []
    hooks = [
        hook(on_publish_deliver=lambda client_id, message: failure() if client_id == "c" else message),
        hook(on_dropped=lambda client_id, message, reason: drops.append((client_id, reason))),
    ]
    async with memory_broker(hooks=hooks) as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        await other.connect("o")
        await other.subscribe("t")
        await broker.publish("t")
        await other.expect(Publish)
        await peer.expect_nothing()
    assert drops == [("c", "hook_failed")]


def test_31__a_changed_message_is_another_one() -> None:
    message = Message("t", b"x")
    head, _ = message.frame(Version.MQTT_5, 0, False)
    changed = message.with_(payload=b"y")
    assert (message.payload, changed.payload) == (b"x", b"y")
    assert changed.frame(Version.MQTT_5, 0, False)[0] != head == message.frame(Version.MQTT_5, 0, False)[0]


# ---- the last word on a message


@pytest.mark.parametrize("qos", [0, 1, 2])
@run_async
async def test_41__on_accepted_after_all_allowed_it(qos: int) -> None:
    seen: list[Any] = []
    later = hook(
        on_accepted=lambda client, message: seen.append((client.client_id, message.payload)),
        on_publish_received=lambda client, message: message.with_(payload=message.payload + b"!"),
    )

    async def wait(client: Any, message: Message) -> None:
        await asyncio.sleep(0)
        if message.payload == b"no":
            raise NotAuthorized

    async with memory_broker(hooks=[hook(on_publish=wait), later]) as broker:
        peer, reader = Peer(broker), Peer(broker)
        await peer.connect("c")
        await reader.connect("r")
        await reader.subscribe("t")
        for number, payload in enumerate((b"no", b"yes"), 1):
            await peer.publish("t", payload, qos=qos, packet_id=number)
        assert (await reader.expect(Publish)).payload == b"yes!"
        await broker.publish("t", b"of the program")
        assert (await reader.expect(Publish)).payload == b"of the program"
    assert seen == [("c", b"yes!")]


@pytest.mark.parametrize(
    ("failure", "code"), [(refusing(QuotaExceeded("full")), 0x97), (boom, 0x83), (hangs, 0x83)]
)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@run_async
async def test_41__on_accepted_refuses(failure: Any, code: int) -> None:
    async with memory_broker(hooks=[hook(on_accepted=failure)]) as broker:
        peer = Peer(broker)
        await peer.connect("c", will=Will("t", b"will"))
        await peer.subscribe("t")
        assert await peer.publish("t", b"1", qos=1, retain=True) == code
        assert await peer.publish("t", b"2", qos=2, packet_id=2) == code
        await peer.publish("t", b"3")
        await peer.expect_nothing()
        assert broker.stats.dropped == {"refused": 3}
        other = Peer(broker)
        await other.connect("o")
        await other.subscribe("t")
        peer.send(Disconnect(0x04))
        assert (await other.expect(Publish)).payload == b"will", "nobody is asked about it"


@pytest.mark.parametrize("event", ["on_publish", "on_publish_received", "on_accepted"])
@run_async
async def test_42__acknowledge_only(event: str, tmp_path: Path) -> None:
    later: list[Any] = []

    def once(client: Any, message: Message) -> Any:
        if message.payload == b"copy":
            raise AcknowledgeOnly
        return message

    hooks = [hook(**{event: once}), hook(on_accepted=lambda client, message: later.append(message.payload))]
    async with memory_broker(hooks=hooks, store=tmp_path / "broker.db") as broker:
        peer, vier = Peer(broker), Peer(broker, Version.MQTT_3_1_1)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await vier.connect("vier", clean_start=False)
        await peer.subscribe("t", qos=1)
        for each in (peer, vier):
            for qos in (0, 1, 2):
                assert await each.publish("t", b"copy", qos=qos, packet_id=7, retain=True) == 0
            await each.expect_nothing()
        assert broker.stats.dropped == {"not_routed": 6}
        assert later == [] and len(broker._core.retained) == 0
        assert not broker._core.sessions.get("c").inflight.held, "the identifier is free"  # type: ignore[union-attr]
        assert await vier.publish("t", b"x", qos=1) == 0
        assert (await peer.expect(Publish)).payload == b"x"


@run_async
async def test_42__an_acknowledgement_waits_for_what_is_on_its_way(tmp_path: Path) -> None:
    """The first try of the same message may have been on another connection, and not be stored yet."""

    def copies(client: Any, message: Message) -> None:
        if message.payload == b"copy":
            raise AcknowledgeOnly

    async with memory_broker(hooks=[hook(on_accepted=copies)], store=tmp_path / "broker.db") as broker:
        reader, first, second = Peer(broker), Peer(broker), Peer(broker)
        await reader.connect("r", properties={"session_expiry_interval": 60})
        await reader.subscribe("t", qos=1)
        await first.connect("1")
        await second.connect("2")
        with broken_disk(broker):
            first.send(Publish("t", b"x", 1, packet_id=1))
            second.send(Publish("t", b"copy", 1, packet_id=1))
            assert [(await each.expect(Puback)).reason_code for each in (first, second)] == [0x97, 0x97]
        await recovered(broker)
        assert await second.publish("t", b"copy", qos=1) == 0


@run_async
async def test_42__a_copy_at_qos_2_ends_its_flow_after_a_restart(tmp_path: Path) -> None:
    def copies(client: Any, message: Message) -> None:
        raise AcknowledgeOnly

    keep: Any = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    for packet in (Publish("t", b"copy", 2, packet_id=9), None):
        async with memory_broker(hooks=[hook(on_accepted=copies)], store=tmp_path / "broker.db") as broker:
            peer, reader = Peer(broker), Peer(broker)
            await peer.connect("c", **keep)
            await reader.connect("r")
            await reader.subscribe("#", qos=2)
            if packet is not None:
                peer.send(packet)
                assert (await peer.expect(Pubrec)).reason_code == 0
            else:
                peer.send(Pubrel(9))
                assert (await peer.expect(Pubcomp)).reason_code == 0
                assert broker.stats.dropped == {}, "it was counted when it came"
            await reader.expect_nothing()


@run_async
async def test_43__on_taken_back_once_for_what_is_refused_after_all(tmp_path: Path) -> None:
    accepted: list[bytes] = []
    taken_back: list[Any] = []
    note = hook(
        on_accepted=lambda client, message: accepted.append(message.payload),
        on_taken_back=lambda client, message: taken_back.append((client.client_id, message.payload)),
    )
    config = Config(capacity=Capacity(maximum_retained_bytes=60))
    async with memory_broker(config, hooks=[note], store=tmp_path / "broker.db") as broker:
        peer, reader = Peer(broker), Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await reader.connect("r", properties={"session_expiry_interval": 60})
        await reader.subscribe("t", qos=1)
        large = b"r" * 100
        assert await peer.publish("t", large, qos=1, retain=True) == 0x97
        assert await peer.publish("t", large, qos=2, retain=True) == 0x97
        assert taken_back == [("c", large)] * 2
        taken_back.clear()
        with broken_disk(broker):
            assert await peer.publish("t", b"1", qos=1) == 0x97
            assert await peer.publish("t", b"2", qos=2) == 0x97
        assert taken_back == [("c", b"1"), ("c", b"2")]
        await recovered(broker)
        assert await peer.publish("t", b"3", qos=1) == 0
        assert len(taken_back) == 2
    assert accepted == [large, large, b"1", b"2", b"3"]


@run_async
async def test_43__what_store_retained_refuses_is_taken_back() -> None:
    taken_back: list[bytes] = []

    async def full(message: Message) -> None:
        await asyncio.sleep(0)
        raise QuotaExceeded("full")

    note = hook(
        on_accepted=lambda client, message: None,
        on_taken_back=lambda client, message: taken_back.append(message.payload),
        store_retained=full,
    )
    async with memory_broker(hooks=[note]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", b"1", qos=1, retain=True) == 0x97
    assert taken_back == [b"1"]


@pytest.mark.parametrize(("failure", "code"), [(refusing(QuotaExceeded("full")), 0x97), (boom, 0x83)])
@run_async
async def test_43__what_a_hook_behind_it_refuses_is_taken_back(failure: Any, code: int) -> None:
    """But not for those that were not told, or that an AcknowledgeOnly follows."""
    taken_back: list[str] = []

    def told(name: str, accept: Any = lambda *args: None) -> HookBase:
        def note(client: Any, message: Message) -> None:
            taken_back.append(name)

        return hook(on_accepted=accept, on_taken_back=note)

    def decide(client: Any, message: Message) -> None:
        if message.payload == b"copy":
            raise AcknowledgeOnly
        failure()

    hooks = [told("first"), told("second"), told("refuses", decide), told("behind")]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", b"x", qos=1) == code
        assert taken_back == ["first", "second"]
        assert await peer.publish("t", b"copy", qos=1) == 0
        assert taken_back == ["first", "second"]


@run_async
async def test_44__notes_are_committed_with_the_message(tmp_path: Path) -> None:
    """Nobody reads it, and yet its acknowledgement waits for the note."""
    notes: list[Any] = []
    found: list[Any] = []

    def begin(broker: Any) -> None:
        notes[:] = [broker.notes("mine"), broker.notes("other")]
        found.append((notes[0].items(), notes[1].items(), notes[0].durable))

    made = hook(init=begin, on_accepted=lambda client, message: notes[0].put("last", message.payload))
    for number in (b"1", b"2"):
        async with memory_broker(hooks=[made], store=tmp_path / "broker.db") as broker:
            peer = Peer(broker)
            await peer.connect("c")
            with broken_disk(broker, full=False):
                assert await peer.publish("nobody/reads", number, qos=1) == 0x83
                with pytest.raises(MqttError):
                    notes[0].check()
            await recovered(broker)
            notes[0].check()
            assert await peer.publish("nobody/reads", number, qos=1) == 0x10
            assert notes[0].get("last") == number
            notes[1].put("gone", b"")
            notes[1].delete("gone")
            notes[1].put(number.decode(), b"kept")
            notes[1].delete("never was")
    assert found == [([], [], True), ([("last", b"1")], [("1", b"kept")], True)]


@run_async
async def test_44__notes_without_a_store() -> None:
    async with memory_broker() as broker:
        before = broker._core.budget.used
        notes = broker.notes("mine")
        assert not notes.durable
        notes.put("a", b"1")
        notes.put("a", b"22")
        assert broker.notes("mine").items() == [("a", b"22")]
        notes.delete("a")
        assert notes.get("a") is None
        assert broker._core.budget.used == before
        for owner in ("", "a/b"):
            with pytest.raises(ValueError, match="without a slash"):
                broker.notes(owner)


# ---- notifying hooks


@run_async
async def test_32__on_connected_once() -> None:
    calls: list[str] = []
    async with memory_broker(hooks=[recorder(calls, "a", "on_connected"), hook(on_connected=boom)]) as broker:
        peer = Peer(broker)
        assert (await peer.connect("c")).reason_code == 0
        await peer.expect_nothing()
        assert calls == ["a.on_connected"]


@run_async
async def test_33__on_disconnect_once_after_the_will() -> None:
    seen: list[Any] = []
    hooks = [
        hook(on_disconnect=lambda client, reason, text: seen.append((client.client_id, int(reason)))),
        hook(on_publish=lambda client, message: seen.append(message.topic_name)),
    ]
    clock = Clock()
    async with memory_broker(hooks=hooks, clock=clock) as broker:
        normal, kept = Peer(broker), Peer(broker)
        await normal.connect("normal")
        normal.send(Disconnect())
        await settle(broker, "normal")
        await kept.connect("idle", keep_alive=10, will=Will("will", b""))
        clock.now += 15
        await broker.sweep()
        assert (await kept.expect(Disconnect)).reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT
        await settle(broker, "idle")
        refused, broken = Peer(broker), Peer(broker)
        refused.send_raw(b"\x10\x00")
        await refused.expect_end()
        await broken.connect("broken")
        broken.send(Connect("broken"))
        await broken.expect(Disconnect)
    assert seen == [("normal", 0), "will", ("idle", 0x8D), ("broken", 0x82)]


@run_async
async def test_33__on_disconnect_after_the_will_of_a_connection_that_was_taken_over() -> None:
    seen: list[str] = []
    gate = asyncio.Event()

    async def slow(client: Any, message: Message) -> None:
        seen.append("asked")
        await gate.wait()
        seen.append("will")

    hooks = [hook(on_publish=slow, on_disconnect=lambda *args: seen.append("disconnect"))]
    async with memory_broker(hooks=hooks) as broker:
        old, new = Peer(broker), Peer(broker)
        await old.connect("c", will=Will("will", b""))
        new.send(Connect("c"))
        assert (await old.expect(Disconnect)).reason_code == ReasonCode.SESSION_TAKEN_OVER
        for _ in range(50):
            await asyncio.sleep(0)
        assert seen == ["asked"]
        gate.set()
        await new.expect(Connack)
        await new.expect_nothing()
        assert seen == ["asked", "will", "disconnect"]


@run_async
async def test_34__created_or_resumed_before_connected() -> None:
    calls: list[str] = []
    events = ("on_session_created", "on_session_resumed", "on_connected")
    async with memory_broker(hooks=[recorder(calls, "a", *events)]) as broker:
        for clean in (True, False):
            peer = Peer(broker)
            await peer.connect("c", clean_start=clean, properties={"session_expiry_interval": 60})
            await peer.expect_nothing()
    assert calls == [f"a.{event}" for event in (events[0], events[2], events[1], events[2])]


@run_async
async def test_35__on_session_ended_once() -> None:
    ended: list[str] = []
    clock = Clock()
    async with memory_broker(hooks=[hook(on_session_ended=ended.append)], clock=clock) as broker:
        for client_id, interval in (("at_once", 0), ("later", 10)):
            peer = Peer(broker)
            await peer.connect(client_id, properties={"session_expiry_interval": interval})
            peer.send(Disconnect())
            await settle(broker, client_id)
        await asyncio.sleep(0)
        assert ended == ["at_once"]
        clock.now += 10
        await broker.sweep()
        await broker.sweep()
        assert ended == ["at_once", "later"]


@run_async
async def test_36__on_dropped_once_with_a_reason() -> None:
    drops: list[Any] = []
    note = hook(
        on_dropped=lambda client_id, message, reason: drops.append((client_id, message.topic_name, reason))
    )
    async with memory_broker(hooks=[note, hook(on_dropped=boom)]) as broker:
        peer = Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60, "maximum_packet_size": 50})
        await peer.subscribe("t", qos=1)
        await broker.publish("t", b"x" * 100, qos=1)
        peer.send(Disconnect())
        await settle(broker, "c")
        await broker.publish("t", qos=0)
        await broker.publish("t", qos=1, properties={"message_expiry_interval": 0})
        assert broker.stats.dropped == {"packet_too_large": 1, "offline": 1, "expired": 1}
    assert drops == [("c", "t", reason) for reason in ("packet_too_large", "offline", "expired")]


def test_36__every_reason_is_in_the_table() -> None:
    source = "".join(file.read_text() for file in CONTRACT.parents[1].glob("broker/**/*.py"))
    given = set(re.findall(r'dropped\([^()]*(?:\([^()]*\))?[^()]*"(\w+)"(?: if|\))', source))
    given |= set(re.findall(r'_drop\([^()]*(?:\([^()]*\))?[^()]*"(\w+)"\)', source))
    table = CONTRACT.read_text().partition("## Reasons")[2]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|[^|]*\|", table, re.MULTILINE))))
    assert given and given <= documented


# ---- retained messages


@run_async
async def test_37__store_retained_first_provider() -> None:
    stored: list[Any] = []

    async def store(message: Message) -> None:
        if message.topic_name == "full":
            raise QuotaExceeded("full")
        if message.topic_name == "fails":
            boom()
        stored.append((message.topic_name, message.payload))

    second: list[str] = []
    async with memory_broker(
        hooks=[hook(store_retained=store), recorder(second, "b", "store_retained")]
    ) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("+")
        await peer.connect("p")
        assert await peer.publish("t", b"x", qos=1, retain=True) == 0
        assert await peer.publish("t", b"", qos=2, retain=True) == 0
        assert await peer.publish("full", b"x", qos=1, retain=True) == ReasonCode.QUOTA_EXCEEDED
        assert await peer.publish("fails", b"x", qos=1, retain=True) == 0x83
        peer.send(Publish("full", b"x", 2, True, packet_id=9), Pubrel(9))
        await peer.expect(Pubrec)
        assert (await peer.expect(Disconnect)).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert [(await watcher.expect(Publish)).topic_name for _ in range(2)] == ["t", "t"]
        await watcher.expect_nothing()
    assert stored == [("t", b"x"), ("t", b"")]
    assert second == []


@run_async
async def test_38__get_retained_first_provider() -> None:
    clock = Clock()

    async def find(topic_filter: str) -> list[Message]:
        if topic_filter == "fails":
            boom()
        return [Message("t", b"new", 1), Message("t", b"old", expires_at=clock.now - 1)]

    second: list[str] = []
    hooks = [hook(get_retained=find), recorder(second, "b", "get_retained")]
    async with memory_broker(hooks=hooks, clock=clock) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        got = await peer.expect(Publish)
        assert (got.payload, got.retain, got.qos) == (b"new", True, 0)
        assert (await peer.subscribe("fails")).reason_codes == [0]
        await peer.expect_nothing()
    assert second == []


@run_async
async def test_39__the_program_is_not_asked() -> None:
    asked: list[str] = []
    events = ("on_publish", "on_publish_received", "can_read", "on_publish_deliver")
    async with memory_broker(hooks=[recorder(asked, "a", *events)]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t")
        await broker.publish("t", b"x")
        await peer.expect(Publish)
    assert asked == ["a.can_read", "a.on_publish_deliver"]


# ---- a store that cannot be written


@run_async
async def test_40__told_once_when_it_fails_and_once_when_it_works_again(tmp_path: Path) -> None:
    seen: list[Any] = []
    told = hook(
        on_store_failed=lambda failure: seen.append((type(failure), failure.full, str(failure))),
        on_store_recovered=lambda: seen.append("recovered"),
    )
    path = tmp_path / "broker.db"
    async with memory_broker(hooks=[told], store=path) as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await peer.subscribe("t", qos=1)
        await other.connect("o")
        with broken_disk(broker):
            assert await other.publish("t", b"1", qos=1) == ReasonCode.QUOTA_EXCEEDED
            assert seen == [(StoreError, True, f"{path}: no room")]
            await until(lambda: broker._core.journal.failures > 3)
            assert await other.publish("t", b"2", qos=2, packet_id=2) == ReasonCode.QUOTA_EXCEEDED
        await recovered(broker)
        assert seen[1:] == ["recovered"]
        assert await other.publish("t", b"4", qos=1, packet_id=4) == 0
    assert len(seen) == 2


@pytest.mark.parametrize("failure", [boom, hangs])
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@run_async
async def test_40__one_that_fails_is_logged(
    failure: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = dict.fromkeys(OF_THE_STORE, failure)
    async with memory_broker(hooks=[hook(**events)], store=tmp_path / "broker.db") as broker:
        peer, other = Peer(broker), Peer(broker)
        await peer.connect("c", properties={"session_expiry_interval": 60})
        await peer.subscribe("t", qos=1)
        await other.connect("o")
        with broken_disk(broker, full=False):
            assert await other.publish("t", qos=1) == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        await recovered(broker)
        assert await other.publish("t", qos=1) == 0
    assert all(f"failed in {event}" in caplog.text for event in OF_THE_STORE)


# ---- what has happened


@run_async
async def test_45__on_taken_after_all_others_and_before_anybody_is_sent_it() -> None:
    calls: list[str] = []
    accepted: list[Any] = []

    def note(client: Any, message: Message, dup: bool, origin: str) -> None:
        calls.append("accepted")
        who = None if client is None else client.client_id
        accepted.append((who, message.topic_name, message.payload, message.qos, dup, origin))

    def change(client: Any, message: Message) -> Message:
        return message.with_(payload=b"changed")

    hooks = [
        hook(on_taken=note),
        hook(on_publish_received=change),
        recorder(calls, "b", "on_publish", "on_delivered"),
    ]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c", will=Will("w", b"will"))
        await peer.subscribe("t")
        peer.send(Publish("t", b"0"))
        await peer.expect(Publish)
        assert calls == ["b.on_publish", "accepted", "b.on_delivered"]
        peer.send(Publish("u", b"2", 2, packet_id=7), Publish("u", b"2", 2, packet_id=7, dup=True), Pubrel(7))
        await peer.expect_end() if False else None
        for _ in range(2):
            await peer.expect(Pubrec)
        peer.drop()
        await settle(broker, "c")
        await broker.publish("p", b"program", qos=1)
        broker._publish_sys()
    kinds = [each for each in accepted if each[5] != "sys"]
    assert kinds == [
        ("c", "t", b"changed", 0, False, "client"),
        ("c", "u", b"changed", 2, False, "client"),
        ("c", "w", b"changed", 0, False, "will"),
        (None, "p", b"program", 1, False, "program"),
    ]
    assert {(each[0], each[5]) for each in accepted[len(kinds) :]} == {(None, "sys")}


@pytest.mark.parametrize("failure", [refusing(QuotaExceeded("full")), boom, lambda *args: "no Hold"])
@run_async
async def test_45__it_may_refuse_what_a_client_or_the_program_published(failure: Any) -> None:
    async with memory_broker(hooks=[hook(on_taken=failure)]) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("#")
        await peer.connect("c", will=Will("will", b"all the same"))
        refused = ReasonCode.QUOTA_EXCEEDED if failure not in (boom,) else 0x83
        for qos in (1, 2):
            code = await peer.publish("t", b"x", qos=qos, retain=True, packet_id=qos)
            assert code in (refused, 0x83)
        with pytest.raises(MqttError):
            await broker.publish("t", b"x", qos=1)
        assert len(broker._core.retained) == 0
        assert not peer_session(broker, "c").inflight.held
        peer.drop()
        assert (await watcher.expect(Publish)).topic_name == "will"
        await watcher.expect_nothing()


def peer_session(broker: Broker, client_id: str) -> Any:
    return broker._core.sessions.get(client_id)


@run_async
async def test_46__acknowledgements_wait_in_order_and_the_client_is_read_on() -> None:
    futures: dict[str, asyncio.Future[None]] = {}

    def hold(client: Any, message: Message, dup: bool, origin: str) -> Any:
        future = futures.get(message.topic_name)
        return None if future is None else Hold(acknowledgement=future)

    async with memory_broker(hooks=[hook(on_taken=hold)]) as broker:
        futures["a"] = asyncio.get_running_loop().create_future()
        futures["b"] = asyncio.get_running_loop().create_future()
        peer, watcher = Peer(broker), Peer(broker)
        await watcher.connect("w")
        await watcher.subscribe("#", qos=0)
        await peer.connect("c")
        peer.send(Publish("a", b"1", 1, packet_id=1), Publish("free", b"2", 1, packet_id=2))
        peer.send(Publish("b", b"3", 2, packet_id=3), Publish("a", b"4", 1, packet_id=4))
        for payload in (b"1", b"2", b"4"):  # QoS 2 is routed at PUBREL
            assert (await watcher.expect(Publish)).payload == payload
        await peer.expect_nothing()
        futures["b"].set_result(None)
        await peer.expect_nothing()
        futures["a"].set_result(None)
        answers = [await peer.expect(kind) for kind in (Puback, Puback, Pubrec, Puback)]
        assert [answer.packet_id for answer in answers] == [1, 2, 3, 4]
        assert all(answer.reason_code == 0 for answer in answers)


@pytest.mark.parametrize("version", [Version.MQTT_5, Version.MQTT_3_1_1])
@run_async
async def test_46__an_error_refuses_what_was_held(version: Version) -> None:
    held: list[asyncio.Future[None]] = []

    def hold(client: Any, message: Message, dup: bool, origin: str) -> Any:
        return Hold(acknowledgement=held[0]) if message.topic_name == "held" else None

    async with memory_broker(hooks=[hook(on_taken=hold)]) as broker:
        held.append(asyncio.get_running_loop().create_future())
        peer = Peer(broker, version)
        await peer.connect("c")
        peer.send(Publish("held", b"1", 1, packet_id=1), Publish("held", b"2", 2, packet_id=2))
        peer.send(Publish("free", b"3", 1, packet_id=3))
        await peer.expect_nothing()
        held[0].set_exception(QuotaExceeded("the log is full"))
        if version is Version.MQTT_5:
            assert (await peer.expect(Puback)).reason_code == ReasonCode.QUOTA_EXCEEDED
            assert (await peer.expect(Pubrec)).reason_code == ReasonCode.QUOTA_EXCEEDED
            assert (await peer.expect(Puback)).reason_code in (0, 0x10)
            assert not peer_session(broker, "c").inflight.held
        else:
            await peer.expect_end()
    assert not held[0].cancelled()


@run_async
async def test_46__a_repeated_qos_2_message_waits_for_what_the_first_waited_for() -> None:
    held: list[asyncio.Future[None]] = []
    hold = hook(on_taken=lambda *args: Hold(acknowledgement=held[0]))
    async with memory_broker(hooks=[hold]) as broker:
        held.append(asyncio.get_running_loop().create_future())
        peer, again = Peer(broker), Peer(broker)
        await peer.connect("c", clean_start=False, properties={"session_expiry_interval": 60})
        peer.send(Publish("t", b"1", 2, packet_id=1))
        await peer.expect_nothing()
        peer.drop()
        await again.connect("c", clean_start=False)
        again.send(Publish("t", b"1", 2, packet_id=1, dup=True))
        await again.expect_nothing()
        held[0].set_result(None)
        await again.expect(Pubrec)


@run_async
async def test_46__the_program_waits_as_well_and_cancels_nothing() -> None:
    held: list[asyncio.Future[None]] = []
    hold = hook(on_taken=lambda *args: Hold(acknowledgement=held[0], reading=held[0]))
    async with memory_broker(hooks=[hold]) as broker:
        held.append(asyncio.get_running_loop().create_future())
        task = asyncio.create_task(broker.publish("t", b"1", qos=1))
        other = asyncio.create_task(broker.publish("t", b"1", qos=1))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert not held[0].cancelled() and not other.done()
        held[0].set_result(None)
        assert await other == ReasonCode.NO_MATCHING_SUBSCRIBERS


@run_async
async def test_46__a_client_that_must_wait_is_not_read() -> None:
    futures: list[asyncio.Future[None]] = []
    seen: list[str] = []

    def hold(client: Any, message: Message, dup: bool, origin: str) -> Any:
        seen.append(message.topic_name)
        return Hold(reading=futures[0]) if message.topic_name == "full" else None

    async with memory_broker(hooks=[hook(on_taken=hold), hook(on_taken=hold)]) as broker:
        futures.append(asyncio.get_running_loop().create_future())
        peer, other, gone = Peer(broker), Peer(broker), Peer(broker)
        await peer.connect("c")
        await other.connect("o")
        await gone.connect("g")
        for each in (peer, gone):
            each.send(Publish("full", b""), Publish("behind", b""))
        assert await other.publish("free", qos=1) == ReasonCode.NO_MATCHING_SUBSCRIBERS
        assert "behind" not in seen
        gone.drop()
        await broker.disconnect("g")
        assert not futures[0].done()
        futures[0].set_result(None)
        await peer.expect_nothing()
        assert seen.count("behind") == 2


async def follow(event: str) -> list[Any]:
    """What a hook with *event* hears of one message of each QoS, one that is refused, and a retained one."""
    seen: list[Any] = []

    def note(who: str, message: Message, *codes: int) -> None:
        seen.append((who, message.topic_name, *codes))

    async with memory_broker(hooks=[hook(**{event: note})]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await broker.publish("0", b"x", retain=True)
        await peer.subscribe("#", qos=2)
        await peer.expect(Publish)
        await broker.publish("1", b"", qos=1)
        peer.send(Puback((await peer.expect(Publish)).packet_id, 0x80))
        await broker.publish("2", b"", qos=2)
        packet_id = (await peer.expect(Publish)).packet_id
        peer.send(Pubrec(packet_id))
        await peer.expect(Pubrel)
        peer.send(Pubcomp(packet_id))
        await broker.publish("refused", b"", qos=2)
        peer.send(Pubrec((await peer.expect(Publish)).packet_id, 0x97))
        await peer.expect_nothing()
    return seen


@run_async
async def test_47__on_delivered_once_for_each_publish() -> None:
    assert await follow("on_delivered") == [("c", "0", 0), ("c", "1", 1), ("c", "2", 2), ("c", "refused", 2)]


@run_async
async def test_48__on_acknowledged_once_at_the_end() -> None:
    assert await follow("on_acknowledged") == [
        ("c", "1", 1, 0x80),
        ("c", "2", 2, 0),
        ("c", "refused", 2, 0x97),
    ]


@run_async
async def test_49__on_connack_once_for_each_connection_that_was_answered() -> None:
    seen: list[Any] = []
    told = hook(
        on_connack=lambda info, code, present: seen.append(
            (info.client_id, code, present, info.keep_alive, info.session_expiry_interval)
        ),
        on_connect=lambda info, packet: boom() if info.client_id == "bad" else None,
    )
    async with memory_broker(hooks=[told]) as broker:
        for present in (False, True):
            peer = Peer(broker)
            await peer.connect(
                "c", clean_start=False, keep_alive=9, properties={"session_expiry_interval": 60}
            )
            assert seen.pop() == ("c", 0, present, 9, 60)
            peer.drop()
            await settle(broker, "c")
        bad, rubbish, silent = Peer(broker), Peer(broker), Peer(broker)
        assert (await bad.connect("bad")).reason_code == 0x83
        await bad.expect_end()
        rubbish.send_raw(b"\x10\x00")
        await rubbish.expect_end()
        silent.drop()
        for _ in range(10):
            await asyncio.sleep(0)
    assert seen == [("bad", 0x83, False, 0, 0), ("", 0x84, False, 0, 0)]


@run_async
async def test_50__on_session_at_each_change() -> None:
    seen: list[Any] = []
    clock = Clock()
    told = hook(on_session=lambda who, state, waiting: seen.append((who, state, waiting)))
    async with memory_broker(hooks=[told], clock=clock) as broker:
        kept: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 10}}
        first, second = Peer(broker), Peer(broker)
        await first.connect("c", **kept)
        await first.subscribe("t", qos=1)
        await second.connect("c", **kept)
        second.drop()
        await settle(broker, "c")
        await broker.publish("t", b"", qos=1)
        clock.now += 11
        await broker.sweep()
        await Peer(broker).connect("d")
        await broker.delete_session("d")
    assert seen == [
        ("c", "created", 0),
        ("c", "taken_over", 0),
        ("c", "resumed", 0),
        ("c", "expired", 1),
        ("d", "created", 0),
        ("d", "ended", 0),
    ]


@run_async
async def test_51__on_subscribed_and_on_unsubscribed_with_their_codes() -> None:
    seen: list[Any] = []

    def allow(client: Any, request: SubscribeRequest) -> SubscribeRequest:
        if request.topic_filter == "secret":
            raise NotAuthorized("no")
        return SubscribeRequest(request.topic_filter, min(1, request.qos))

    told = hook(
        on_subscribe=allow,
        on_subscribed=lambda info, request, code, number: seen.append(
            (info.client_id, request.topic_filter, request.qos, code, number)
        ),
        on_unsubscribed=lambda info, topic_filter, code: seen.append((info.client_id, topic_filter, code)),
    )
    async with memory_broker(hooks=[told]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        requests = [SubscribeRequest("a", 2), SubscribeRequest("secret", 2)]
        peer.send(Subscribe(1, requests, {"subscription_identifier": 7}))
        await peer.expect(Suback)
        peer.send(Unsubscribe(2, ["a", "b"]))
        await peer.expect(Unsuback)
    assert seen == [("c", "a", 1, 1, 7), ("c", "secret", 2, 0x87, 7), ("c", "a", 0), ("c", "b", 0x11)]


@run_async
async def test_52__sys_values_of_hooks(caplog: pytest.LogCaptureFixture) -> None:
    hooks = [hook(sys_values=lambda: {"log/written": 5}), hook(sys_values=boom)]
    async with memory_broker(hooks=hooks) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("$SYS/broker/log/#")
        found = await peer.expect(Publish)
        assert (found.topic_name, found.payload) == ("$SYS/broker/log/written", b"5")
    assert "failed in sys_values" in caplog.text


@run_async
async def test_53__the_mark_of_a_message_is_there_when_it_is_heard_of_again() -> None:
    seen: list[Any] = []

    def mark(client: Any, message: Message, dup: bool, origin: str) -> None:
        message.mark = len(seen)
        seen.append(message.mark)

    told = hook(
        on_taken=mark,
        on_publish_deliver=lambda who, message: message.with_(payload=b"copy"),
        on_delivered=lambda who, message, qos: seen.append((message.mark, message.payload)),
    )
    async with memory_broker(hooks=[told]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        await peer.subscribe("t", qos=1)
        assert await peer_publish(peer) == 0
    assert seen == [0, (0, b"copy")]


async def peer_publish(peer: Peer) -> int:
    """PUBLISH at QoS 1 to the peer itself; the Reason Code of the PUBACK, whichever comes first."""
    peer.send(Publish("t", b"x", 1, packet_id=1))
    found = [await peer.recv(), await peer.recv()]
    return next(packet.reason_code for packet in found if isinstance(packet, Puback))


@run_async
async def test_54__what_is_known_of_a_connection_that_has_ended() -> None:
    seen: dict[str, Any] = {}

    def note(info: Any, reason: int, text: str) -> None:
        seen[info.client_id] = info

    async with memory_broker(hooks=[hook(on_disconnect=note, on_taken=lambda *args: None)]) as broker:
        left, lost, ended = Peer(broker), Peer(broker), Peer(broker)
        for name, peer in (("left", left), ("lost", lost), ("ended", ended)):
            await peer.connect(name)
        await left.subscribe("t")
        left.send(Publish("t", b"x" * 100), Publish("other", b""))
        await left.expect(Publish)
        left.send(Disconnect(0x04))
        lost.drop()
        await broker.disconnect("ended")
        for name in ("left", "lost", "ended"):
            await settle(broker, name)
        for _ in range(10):
            await asyncio.sleep(0)
    assert {name: info.ended_by for name, info in seen.items()} == {
        "left": "client",
        "lost": "network",
        "ended": "server",
    }
    info = seen["left"]
    assert (info.publish_received, info.publish_sent) == (2, 1)
    assert info.bytes_received > 100 and 100 < info.bytes_sent < info.bytes_received


@pytest.mark.parametrize("holds", [False, True])
@run_async
async def test_55__runs_of_the_fast_lane_in_order_with_the_rest(holds: bool) -> None:
    seen: list[Any] = []

    def single(client: Any, message: Message, dup: bool, origin: str) -> None:
        seen.append(message.payload)

    def run(client: Any, packets: bytes, count: int) -> None:
        reader = PacketReader()
        reader.version = Version.MQTT_5
        found = [packet for packet in reader.feed(packets) if isinstance(packet, Publish)]
        assert len(found) == count and client.client_id == "c" and not reader.partial
        seen.append([(packet.topic_name, packet.payload) for packet in found])

    made = hook(on_taken=single, on_taken_run=run)
    made.holds = holds
    config = Config(capacity=Capacity(fast_lane=True))
    async with memory_broker(config, hooks=[made]) as broker:
        peer, watcher = Peer(broker), Peer(broker)
        await peer.connect("c")
        await watcher.connect("w")
        await watcher.subscribe("#")
        peer.send(Publish("t", b"names it", properties={"topic_alias": 1}))
        await peer.expect_nothing()
        peer.send(Publish("t", b"0"), Pingreq(), Publish("u", b"1"))
        await peer.expect(Pingresp)
        peer.send(Publish("", b"2", properties={"topic_alias": 1}))
        await peer.expect_nothing()
        peer.send(Publish("t", b"3", 1, packet_id=5))
        await peer.expect(Puback)
        peer.send(Publish("u", b"4"), Publish("t", b"5", 2, packet_id=9), Publish("u", b"6"))
        await peer.expect(Pubrec)
        await peer.expect_nothing()
    runs = [pair for part in seen if isinstance(part, list) for pair in part]
    flat = [each for part in seen for each in (part if isinstance(part, list) else [("", part)])]
    assert [payload for _, payload in flat] == [b"names it", *(b"%d" % n for n in range(7))]
    assert runs[:3] == [("t", b"0"), ("u", b"1"), ("t", b"2")]
    assert (("t", b"3") in runs) is not holds


@run_async
async def test_56__still_held_is_asked_before_a_copy_is_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept: Any = None

    def copy(client: Any, message: Message) -> None:
        raise AcknowledgeOnly("a copy")

    keeps = hook(on_accepted=copy, still_held=lambda: kept)
    async with memory_broker(hooks=[hook(still_held=boom), keeps]) as broker:
        peer = Peer(broker)
        await peer.connect("c")
        assert await peer.publish("t", qos=1) == 0
        assert "failed in still_held" in caplog.text
        kept = asyncio.get_running_loop().create_future()
        peer.send(Publish("t", b"", 1, packet_id=2))
        await peer.expect_nothing()
        kept.set_result(None)
        assert (await peer.expect(Puback)).reason_code == 0
        kept = asyncio.get_running_loop().create_future()
        kept.set_exception(QuotaExceeded("no"))
        assert await peer.publish("t", qos=1) == ReasonCode.QUOTA_EXCEEDED
        kept = 5
        assert await peer.publish("t", qos=1) == 0
        assert "still_held" in caplog.records[-1].getMessage()


@run_async
async def test_56__still_held_is_asked_before_the_store_speaks_of_a_message(tmp_path: Path) -> None:
    kept = asyncio.get_running_loop().create_future()
    path = tmp_path / "broker.db"
    keeping: dict[str, Any] = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    async with memory_broker(hooks=[hook(still_held=lambda: kept)], store=path) as broker:
        peer = Peer(broker)
        await peer.connect("c", **keeping)
        peer.send(Publish("t", b"", 2, packet_id=1))
        await peer.expect_nothing()
        kept.set_result(None)
        assert (await peer.expect(Pubrec)).packet_id == 1


def test_log_names_hook_and_event(caplog: pytest.LogCaptureFixture) -> None:
    class Named(HookBase):
        id = "my-hook"

        async def on_connected(self, client: Any) -> None:
            raise RuntimeError("boom")

    async def scene() -> None:
        async with memory_broker(hooks=[Named()]) as broker:
            peer = Peer(broker)
            await peer.connect("c")
            await peer.expect_nothing()

    with caplog.at_level(logging.ERROR, "broker.hook"):
        asyncio.run(scene())
    assert "my-hook failed in on_connected" in caplog.text
    assert "RuntimeError: boom" in caplog.text
