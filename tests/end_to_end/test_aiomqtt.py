"""aiomqtt in the loop of the broker that it talks to: what a program sees that embeds one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiomqtt
import pytest
from aiomqtt import Client, Message, MqttError, ProtocolVersion, Will

from broker import BadUserNameOrPassword, Broker, Config, HookBase, ReasonCode
from tests.end_to_end.certificates import Certificates
from tests.end_to_end.paho import TRANSPORTS, properties, session
from tests.end_to_end.running import LISTEN, WAIT

VERSIONS = pytest.mark.parametrize("version", [ProtocolVersion.V311, ProtocolVersion.V5])


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a coroutine as a test, within WAIT seconds."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), WAIT))

    return run


def client_of(broker: Broker, client_id: str | None = None, **options: Any) -> Client:
    address = urlsplit(broker.addresses[0])
    if address.scheme in ("ws", "wss"):
        options["websocket_path"] = address.path
    host, port = (address.path, 1) if address.scheme == "unix" else ("127.0.0.1", address.port)
    transport = TRANSPORTS[address.scheme]
    return Client(host, port, identifier=client_id, transport=transport, timeout=WAIT, **options)


@asynccontextmanager
async def subscribed(
    client: Client, topic_filter: str, qos: int = 2
) -> AsyncIterator[AsyncIterator[Message]]:
    async with client:
        await client.subscribe(topic_filter, qos)
        yield aiter(client.messages)


@VERSIONS
@pytest.mark.parametrize("scheme", TRANSPORTS)
@in_a_loop
async def test_messages_go_both_ways(
    scheme: str, version: ProtocolVersion, certificates: Certificates, tmp_path: Any
) -> None:
    url = LISTEN.get(scheme, f"unix:{tmp_path}/s")
    options = {"tls_context": certificates.context()} if scheme in ("tls", "wss") else {}
    async with (
        Broker(Config(listen=(url,), tls=certificates.tls())) as broker,
        client_of(broker, protocol=version, **options) as publisher,
        subscribed(client_of(broker, protocol=version, **options), "a/+") as messages,
    ):
        local = aiter(broker.subscribe("a/#"))
        for qos in range(3):
            await publisher.publish("a/b", b"\0\xff" * 50_000, qos)
            await broker.publish("a/c", str(qos), qos=qos)
            found = [await anext(messages), await anext(messages)]
            assert {(str(m.topic), len(m.payload), m.qos) for m in found} == {
                ("a/b", 100_000, qos),
                ("a/c", 1, qos),
            }
            assert {(await anext(local)).topic_name for _ in range(2)} == {"a/b", "a/c"}


@VERSIONS
@in_a_loop
async def test_retained_and_will(version: ProtocolVersion) -> None:
    async with Broker(listen=LISTEN["tcp"]) as broker:
        will = Will("status", b"lost", qos=1, retain=True)
        with pytest.raises(MqttError):
            async with client_of(broker, "me", protocol=version, will=will) as client:
                await client.publish("status", b"here", qos=1, retain=True)
                await broker.disconnect("me")
                await anext(aiter(client.messages))
        async with subscribed(client_of(broker, protocol=version), "status") as messages:
            message = await anext(messages)
            assert (message.payload, message.retain) == (b"lost", True)


@VERSIONS
@in_a_loop
async def test_a_session_is_resumed(version: ProtocolVersion) -> None:
    if version == ProtocolVersion.V5:
        lasting: dict[str, Any] = {"clean_start": False, "properties": session(3600)}
    else:
        lasting = {"clean_session": False}
    async with Broker(listen=LISTEN["tcp"]) as broker:
        async with client_of(broker, "me", protocol=version, **lasting) as client:
            await client.subscribe("a", 1)
        for number in range(20):
            assert await broker.publish("a", str(number), qos=1) == 0
        async with client_of(broker, "me", protocol=version, **lasting) as client:
            messages = aiter(client.messages)
            assert [int((await anext(messages)).payload) for _ in range(20)] == list(range(20))


@in_a_loop
async def test_request_and_response() -> None:
    """One client answers another by Response Topic and Correlation Data."""
    async with Broker(listen=LISTEN["tcp"]) as broker:
        serving = subscribed(client_of(broker, protocol=ProtocolVersion.V5), "double")
        asking = subscribed(client_of(broker, protocol=ProtocolVersion.V5), "answers/me")
        async with serving as questions, asking as answers:
            where = properties("PUBLISH", ResponseTopic="answers/me", CorrelationData=b"7")
            async with client_of(broker, protocol=ProtocolVersion.V5) as client:
                await client.publish("double", b"21", 1, properties=where)
                question = await anext(questions)
                data = properties("PUBLISH", CorrelationData=question.properties.CorrelationData)
                answer = str(2 * int(question.payload))
                await client.publish(question.properties.ResponseTopic, answer, 2, properties=data)
            answered = await anext(answers)
            assert (answered.payload, answered.properties.CorrelationData) == (b"42", b"7")


class Doorman(HookBase):
    def on_connect(self, client: Any, packet: Any) -> None:
        if packet.password != b"secret":
            raise BadUserNameOrPassword("no")


@VERSIONS
@in_a_loop
async def test_a_bad_password_is_refused(version: ProtocolVersion) -> None:
    async with Broker(listen=LISTEN["tcp"], hooks=[Doorman()]) as broker:
        with pytest.raises(aiomqtt.MqttCodeError) as refusal:
            async with client_of(broker, username="u", password="guess", protocol=version):
                pass
        assert refusal.value.rc.value == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        async with client_of(broker, username="u", password="secret", protocol=version):
            assert len(broker.clients) == 1


@in_a_loop
async def test_many_clients_in_one_loop() -> None:
    async with Broker(listen=LISTEN["tcp"]) as broker:

        async def listen(number: int, ready: asyncio.Barrier) -> list[int]:
            async with subscribed(client_of(broker, f"c{number}"), "news/+", 1) as messages:
                await ready.wait()
                return [int((await anext(messages)).payload) for _ in range(20)]

        ready = asyncio.Barrier(31)
        async with asyncio.TaskGroup() as group:
            listeners = [group.create_task(listen(number, ready)) for number in range(30)]
            await ready.wait()
            async with client_of(broker) as client:
                for number in range(20):
                    await client.publish("news/today", str(number), 1)
        assert all(listener.result() == list(range(20)) for listener in listeners)
