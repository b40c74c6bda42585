"""What was acknowledged outlives the program: kill it while it waits, and start it again.

    python examples/durable.py            # counts its own starts, in a retained message
    mosquitto_sub -c -i me -q 1 -t 'jobs/#'        # a session; stop it with Ctrl-C, and
    mosquitto_pub -q 1 -t jobs/1 -m first          # this waits for it over every kill -9

The state is in `durable.db`, or in the file that the first argument names.
"""

import asyncio
import contextlib
import sys

from broker import Broker, HookBase


class Watch(HookBase):
    """Is told when the disk is full or fails, and when it works again."""

    def on_store_failed(self, failure):
        print(f"refusing what must be stored: {failure}", file=sys.stderr)

    def on_store_recovered(self):
        print("storing again", file=sys.stderr)


async def main(path: str, address: str) -> None:
    async with Broker(store=path, listen=address, hooks=[Watch()]) as broker:
        starts = await kept_number(broker, "starts") + 1
        await broker.publish("starts", str(starts), qos=1, retain=True)  # returns when it is stored
        print(f"start number {starts}, listening on {broker.addresses[0]}", flush=True)
        await broker.serve()


async def kept_number(broker: Broker, topic_name: str) -> int:
    """The retained number of *topic_name*; 0 if there is none."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            async for message in broker.subscribe(topic_name):
                return int(message.payload)
    return 0


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv[1:]))
    asyncio.run(main(arguments.get(0, "durable.db"), arguments.get(1, "tcp://127.0.0.1:1883")))
