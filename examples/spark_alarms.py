"""A Spark query that tails the message log and publishes alarms back, each of them once whatever is killed.

    pybroker --set message_log.path=log --set message_log.compress=false --set dedup.enabled=true
    python examples/spark_alarms.py log 1883 checkpoint
    mosquitto_sub -t 'alarms/#' -v & mosquitto_pub -t plant/oven -m '{"temperature": 121.5}'

The checkpoint and `dedup` of the broker make it exactly once: keep both. SIGTERM ends the query.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from spark import live, source
from spark.session import Ending, build

LOG, PORT, CHECKPOINT = sys.argv[1:4]
HOT = 100  # degrees

session = build("alarms")
source.register(session)
live.register(session)

messages = session.readStream.format("mqttlog").option("path", LOG).option("tail", "true").load()
temperature = F.get_json_object(F.col("payload").cast("string"), "$.temperature").try_cast("double")
alarms = (
    messages.where("bad is null and topic not like 'alarms/%'")
    .withColumn("temperature", temperature)
    .where(F.col("temperature") > HOT)
    .select(
        *("node", "epoch", "offset"),  # the order in which they are sent, the same each time
        F.concat(F.lit("alarms/"), "topic").alias("topic"),
        F.to_json(F.struct("temperature", "received_at")).alias("payload"),
    )
)
query = (
    alarms.writeStream.format("mqtt")
    .option("host", "127.0.0.1")
    .option("port", PORT)
    .option("checkpointLocation", CHECKPOINT)
    .trigger(processingTime="1 second")
    .start()
)
print("running", flush=True)
ending = Ending().listen()
while not ending.wait(1.0) and query.isActive:
    pass
if (error := query.exception()) is not None:
    sys.exit(str(error))
query.stop()
