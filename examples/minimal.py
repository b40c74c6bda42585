"""The whole of it: a broker on tcp://127.0.0.1:1883. Stop it with Ctrl-C.

python examples/minimal.py
mosquitto_sub -t 'greetings/#' -v &
mosquitto_pub -t greetings/first -m hello
"""

import asyncio
import contextlib

from broker import Broker

with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(Broker().serve())
