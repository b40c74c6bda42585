"""A real broker in your test suite: on a free port, in this process, gone when the test ends.

pytest examples/test_with_pytest.py
"""

import asyncio
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import paho.mqtt.client as paho
import pytest

from broker import Broker


@pytest.fixture
def broker_port() -> Iterator[int]:
    """The port of a broker that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    broker = Broker(listen="tcp://127.0.0.1:0")
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result(5)
    yield urlsplit(broker.addresses[0]).port or 0
    asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_my_device_says_hello(broker_port: int) -> None:
    heard: list[bytes] = []
    done = threading.Event()

    def on_message(client: paho.Client, userdata: object, message: paho.MQTTMessage) -> None:
        heard.append(message.payload)
        done.set()

    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.on_connect = lambda *args: client.subscribe("device/+/hello", qos=1)
    client.on_subscribe = lambda *args: client.publish("device/7/hello", b"hello", qos=1)
    client.on_message = on_message
    client.connect("127.0.0.1", broker_port)
    client.loop_start()
    assert done.wait(5)
    client.disconnect()
    client.loop_stop()
    assert heard == [b"hello"]
