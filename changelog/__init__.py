"""The logs and their replay: one Log protocol (Kafka, embedded), record formats, restore, and the Spark jobs.

Turns stores into logs and logs into stores again. The only part that imports confluent_kafka and pyspark.
"""
