"""Change messages on their way: Fahrenheit comes in, Celsius is stored and sent.

python examples/transform_payload.py
mosquitto_sub -t 'sensors/#' -v &
mosquitto_pub -t sensors/attic/fahrenheit -m 68     # sensors/attic/celsius 20.0
"""

import asyncio
import contextlib

from broker import Broker, ClientInfo, HookBase, Message, MqttError, ReasonCode


class Celsius(HookBase):
    async def on_publish_received(self, client: ClientInfo, message: Message) -> Message:
        if not message.topic_name.endswith("/fahrenheit"):
            return message
        try:
            celsius = (float(message.payload) - 32) / 1.8
        except ValueError as error:
            raise MqttError("not a number", ReasonCode.PAYLOAD_FORMAT_INVALID) from error
        return message.with_(
            topic_name=message.topic_name.removesuffix("fahrenheit") + "celsius",
            payload=f"{celsius:.1f}".encode(),
        )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Broker(hooks=[Celsius()]).serve())
