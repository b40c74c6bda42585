"""A broker inside an asyncio program that publishes and subscribes without a socket.

python examples/embed.py
"""

import asyncio

from broker import Broker


async def thermometer(broker: Broker) -> None:
    for celsius in (19.5, 20.0, 20.5):
        await broker.publish("house/kitchen/temperature", f"{celsius}", qos=1, retain=True)


async def main() -> None:
    async with Broker(listen="tcp://127.0.0.1:0") as broker:  # other clients may come in here
        print("listening on", *broker.addresses)
        async with broker.subscribe("house/+/temperature") as messages:
            await thermometer(broker)
            count = 0
            async for message in messages:
                print(message.topic_name, message.payload.decode())
                count += 1
                if count == 3:
                    break


asyncio.run(main())
