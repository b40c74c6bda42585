"""MQTT 5.0 over a blocking socket, for tasks of Spark and for the recorder. Needs no Spark."""
