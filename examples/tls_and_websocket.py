"""TLS for devices, WebSocket for browsers, plain TCP for this machine alone.

python examples/tls_and_websocket.py server.pem server.key
mosquitto_pub -p 8883 --cafile ca.pem -t t -m hello
// in a browser, with MQTT.js: mqtt.connect("wss://localhost:8084/mqtt")
"""

import asyncio
import contextlib
import sys

from broker import Broker, Config, Protocol, Tls


def config(certificate: str, key: str) -> Config:
    return Config(
        listen=(
            "tcp://127.0.0.1:1883",
            "tls://*:8883",
            "wss://*:8084/mqtt",
        ),
        tls=Tls(certificate=certificate, key=key),
        # Without a hook that authenticates, only this machine may come in. Say so to open it up:
        protocol=Protocol(anonymous="everywhere"),
    )


async def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    await Broker(config(*sys.argv[1:])).serve()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
