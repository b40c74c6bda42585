"""The client of the sink and the recorder: options, connection, window. No JVM."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import BadUserNameOrPassword, Broker, Config, HookBase
from broker.packet.codec import encode
from broker.packet.enums import Version
from broker.packet.packets import Connack, Disconnect, Packet, Pingreq, Pingresp, Puback, Publish, Suback
from broker.packet.reader import PacketReader
from spark.mqtt.line import Gone, Line, Refused, Window
from spark.mqtt.options import Address, between, read_options
from tests.end_to_end.certificates import Certificates
from tests.spark.brokers import broker_with_dedup, read_all, subscribe

# ---- options


def test_options_by_any_case() -> None:
    text = {
        "HOST": "h",
        "port": "1884",
        "passwordfile": "/run/secret",
        "username": "u",
        "TLS": "true",
        "ca": "x",
    }
    address, others = read_options(text | {"Window": "7", "path": "p"}, {"window": ("size", between(1, 9))},
                                   also=["path"])  # fmt: skip
    assert address == Address("h", 1884, "u", None, "/run/secret", True, "x")
    assert others == {"size": 7}
    assert (str(Address(tls=True)), str(Address())) == ("127.0.0.1:8883", "127.0.0.1:1883")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hots": "x"}, "there is no option hots; the nearest is host"),
        ({"port": "0"}, "option port '0' cannot be used: from 1 to 65535"),
        ({"port": "mqtt"}, "option port 'mqtt' cannot be used"),
        ({"tls": "yes"}, "option tls 'yes' cannot be used"),
        ({"ca": "x"}, "ca, cert and key are for tls=true"),
        ({"username": "u", "password": "hunter2", "passwordFile": "f"}, "password or passwordFile, not both"),
        ({"password": "hunter2"}, "a password needs a username"),
    ],
)
def test_a_wrong_option_is_named_and_no_password(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_options(options)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_password_is_not_shown_and_comes_along(tmp_path: Path) -> None:
    address = Address(username="u", password="hunter2")
    assert "hunter2" not in repr(address) + str(address)
    assert pickle.loads(pickle.dumps(address)).secret() == b"hunter2"
    file = tmp_path / "secret"
    file.write_bytes(b"from a file \r\n")
    assert Address(username="u", password_file=str(file)).secret() == b"from a file "
    assert Address().secret() is None


# ---- a broker made by hand


@contextlib.contextmanager
def server(*answers: Callable[[Packet], list[Packet] | None]) -> Iterator[Address]:
    """Answers each packet in turn; None and the end of *answers*: it closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        reader, left = PacketReader(), list(answers)
        with peer:
            while left and (data := peer.recv(1 << 16)):
                for packet in reader.feed(data):
                    said = left.pop(0)(packet) if left else None
                    if said is None:
                        return
                    peer.sendall(b"".join(encode(each, Version.MQTT_5) for each in said))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Address(port=listener.getsockname()[1], timeout=2.0)
    finally:
        thread.join(10)
        listener.close()


def welcome(**properties: Any) -> Callable[[Packet], list[Packet]]:
    return lambda packet: [Connack(properties=properties)]


def puback(code: int = 0, **properties: Any) -> Callable[[Any], list[Packet]]:
    return lambda packet: [Puback(packet.packet_id, code, properties)]


def publish(window: Window, text: str = "x", qos: int = 1) -> None:
    window.publish("t", text.encode(), qos, False, {})


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Gone, match=f"there is no broker at 127.0.0.1:{port}"):
        Line(Address(port=port)).connect("c")


@pytest.mark.parametrize(
    ("connack", "says"),
    [
        (Connack(False, 0x87, {"reason_string": "not you"}), "refused the connection with 0x87: not you"),
        (Connack(False, 0x84), "with 0x84; it has to speak MQTT 5.0"),
    ],
)
def test_a_refused_connection(connack: Connack, says: str) -> None:
    with server(lambda packet: [connack]) as address, pytest.raises(Refused) as caught:
        Line(address).connect("c")
    assert says in str(caught.value)
    assert caught.value.code == connack.reason_code


def test_bytes_that_are_no_mqtt() -> None:
    with (
        server(lambda packet: [Suback(1, [0])]) as address,
        pytest.raises(Gone, match="Suback in place of Connack"),
    ):
        Line(address).connect("c")


def test_a_broker_that_never_answers() -> None:
    with server(lambda packet: [], welcome()) as address:
        line = Line(Address(port=address.port, timeout=0.05))
        with pytest.raises(Gone, match=r"has not answered for 0\.05 s"):
            line.connect("c")
        line.abort()


def test_the_window_is_what_the_broker_allows() -> None:
    """Two messages wait at most: the third is sent after the first PUBACK."""
    seen: list[str] = []

    def hold(packet: Any) -> list[Packet]:
        seen.append(packet.payload.decode())
        return [Puback(1)] if packet.payload == b"2" else []

    def rest(packet: Any) -> list[Packet]:
        seen.append(packet.payload.decode())
        return [Puback(2), Puback(3)]

    with server(welcome(receive_maximum=2), hold, hold, rest) as address, Line(address) as line:
        line.connect("c")
        window = Window(line, 512)
        for text in "123":
            publish(window, text)
        window.settle()
        assert window.acknowledged == 3
    assert seen == ["1", "2", "3"]


@pytest.mark.parametrize("code", [0x80, 0x87, 0x97])
def test_a_negative_puback(code: int) -> None:
    script = server(welcome(), puback(code, reason_string="no"))
    with script as address, Line(address) as line:
        line.connect("c")
        window = Window(line, 512)
        publish(window)
        with pytest.raises(Refused, match=f"refused a message to 't' with 0x{code:02X}: no"):
            window.settle()


def test_no_subscriber_is_no_error() -> None:
    with server(welcome(), puback(0x10)) as address, Line(address) as line:
        line.connect("c")
        window = Window(line, 512)
        publish(window)
        window.settle()


def test_a_puback_out_of_order() -> None:
    with server(welcome(), lambda packet: [Puback(9)]) as address, Line(address) as line:
        line.connect("c")
        window = Window(line, 512)
        publish(window)
        with pytest.raises(Gone, match="a PUBACK for 9 where 1 is due"):
            window.settle()


def test_the_broker_says_why_it_goes() -> None:
    goodbye = Disconnect(0x8B, {"reason_string": "maintenance"})
    with server(welcome(), lambda packet: [goodbye]) as address, Line(address) as line:
        line.connect("c")
        window = Window(line, 512)
        publish(window)
        with pytest.raises(Refused, match="ended the connection with 0x8B: maintenance"):
            window.settle()


def test_a_connection_that_breaks() -> None:
    with server(welcome(), lambda packet: None) as address, Line(address) as line:
        line.connect("c")
        window = Window(line, 512)
        publish(window)
        with pytest.raises(Gone, match=r"127\.0\.0\.1"):
            window.settle()


def test_a_message_that_is_too_large() -> None:
    with server(welcome(maximum_packet_size=30), lambda packet: None) as address, Line(address) as line:
        line.connect("c")
        with pytest.raises(ValueError, match=r"a message to 't' has \d+ bytes, the broker takes 30"):
            publish(Window(line, 512), "x" * 40)


def test_a_message_that_cannot_be_sent() -> None:
    with server(welcome(), lambda packet: None) as address, Line(address) as line:
        line.connect("c")
        with pytest.raises(ValueError, match="a message to 't' cannot be sent: -1 does not fit 4 bytes"):
            Window(line, 512).publish("t", b"", 1, False, {"message_expiry_interval": -1})


def test_silence_is_kept_alive() -> None:
    """The broker wants to hear something each second: PINGREQ after half of it."""
    heard: list[Packet] = []

    def ping(packet: Packet) -> list[Packet]:
        heard.append(packet)
        return [Puback(1)]

    with server(welcome(server_keep_alive=1), ping) as address, Line(address) as line:
        line.connect("c")
        assert line.recv(1.5) == Puback(1)
    assert isinstance(heard[0], Pingreq)


def test_a_broker_that_is_silent_after_a_ping() -> None:
    """Nobody closed the connection: a cable is gone."""
    with server(welcome(), *[lambda packet: []] * 9) as address:
        line = Line(Address(port=address.port, timeout=0.3))
        line.connect("c", keep_alive=1)
        with pytest.raises(Gone, match=r"has not answered for 0\.3 s"):
            for _ in range(40):
                line.recv(0.05)
        line.abort()


def test_a_pingresp_is_no_puback(tmp_path: Path) -> None:
    """It is there when a message of QoS 0 is sent: nothing else will come."""
    with (
        server(welcome(), lambda packet: [Pingresp()], lambda packet: []) as address,
        Line(Address(port=address.port, timeout=0.5)) as line,
    ):
        line.connect("c")
        line.send(Pingreq())
        line._read(1.0)
        publish(window := Window(line, 1), qos=0)
        window.settle()


def test_identifiers_begin_anew(tmp_path: Path) -> None:
    """More messages than there are identifiers, over one connection, some of them at QoS 0."""
    with broker_with_dedup(tmp_path) as broker, Line(Address(port=broker.port)) as line:
        line.connect("c")
        window = Window(line, 512)
        for number in range(66_000):
            publish(window)
            if number % 1000 == 0:
                publish(window, "at once", 0)
        window.settle()
        assert window.acknowledged == 66_000


class Users(HookBase):
    def on_connect(self, client: Any, packet: Any) -> None:  # type: ignore[override]
        if (client.user_name, client.password) != ("ada", b"hunter2"):
            raise BadUserNameOrPassword


@contextlib.contextmanager
def tls_broker(files: Certificates) -> Iterator[int]:
    """A broker that asks for a certificate and a password, in a thread; its port."""
    ports: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def serve() -> None:
        config = Config(tls=files.tls("required"))
        async with Broker(config, hooks=[Users()], listen="tls://127.0.0.1:0") as broker:
            done = asyncio.Event()
            ports.put((int(broker.addresses[0].rpartition(":")[2]), asyncio.get_running_loop(), done))
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, loop, done = ports.get(timeout=10)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(20)


def test_tls_and_a_name(tmp_path: Path) -> None:
    files = Certificates.make(tmp_path)
    given = {"tls": "true", "ca": files.ca, "cert": files.client, "timeout": "5"}
    with tls_broker(files) as port:
        text = {**given, "port": str(port), "username": "ada"}
        with Line(read_options({**text, "password": "hunter2"})[0]) as line:
            line.connect("c")
            publish(window := Window(line, 1))
            window.settle()
        with pytest.raises(Refused, match="0x86"):
            Line(read_options({**text, "password": "wrong"})[0]).connect("c")
        with pytest.raises((OSError, Gone)) as caught:  # a certificate of nobody we know
            Line(read_options({"tls": "true", "port": str(port)})[0]).connect("c")
        assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)


def test_what_was_sent_is_what_comes(tmp_path: Path) -> None:
    with broker_with_dedup(tmp_path) as broker:
        subscribe(broker.port)
        with Line(Address(port=broker.port)) as line:
            line.connect("c")
            window = Window(line, 4)
            for number in range(20):
                window.publish(f"t/{number}", b"%d" % number, 1, number == 3, {"content_type": "text/plain"})
            window.settle()
        found = read_all(broker.port)
    assert [(each.topic_name, each.payload, each.retain) for each in found] == [
        (f"t/{number}", b"%d" % number, number == 3) for number in range(20)
    ]
    assert isinstance(found[0], Publish)
