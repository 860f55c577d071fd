package samovar.peer;

import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.TimestampExtractor;

/**
 * Runs a workload until it is told to stop.
 *
 * <pre>Peer w1|w2 IN OUT [name=value ...]</pre>
 *
 * <p>The pairs are settings of Kafka Streams, passed through; `cached` is ours: whether W1's store has a record cache.
 * It says on standard output, one per line, what it comes to: `first` with the first record, `state NAME`,
 * `restoring FIRST..END` and `restored RECORDS` of a changelog partition.
 */
public final class Peer {
    private Peer() {}

    public static void main(String[] arguments) throws InterruptedException {
        Map<String, String> given = new HashMap<>();
        for (String pair : Arrays.copyOfRange(arguments, 3, arguments.length)) {
            given.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        boolean cached = Boolean.parseBoolean(given.getOrDefault("cached", "true"));
        given.remove("cached");
        Properties settings = new Properties();
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.putAll(given);

        KafkaStreams streams = new KafkaStreams(
            topology(arguments[0], arguments[1], arguments[2], cached).build(), settings);
        CountDownLatch failed = new CountDownLatch(1);
        streams.setGlobalStateRestoreListener(new Restores());
        streams.setStateListener((now, before) -> {
            say("state " + now);
            if (now == KafkaStreams.State.ERROR) {
                failed.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
        failed.await();
        System.exit(1);
    }

    private static StreamsBuilder topology(String workload, String in, String out, boolean cached) {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, Purchase> purchases =
            builder.stream(in, Consumed.with(Serdes.String(), Purchase.serde()).withTimestampExtractor(new Times()));
        KStream<String, String> alerts = switch (workload) {
            case "w1" -> CardTesting.over(builder, purchases, cached);
            case "w2" -> Sessions.over(purchases);
            default -> throw new IllegalArgumentException("no such workload: " + workload);
        };
        alerts.to(out, Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }

    static void say(String text) {
        System.out.println(text);
    }

    /** Event times; and the first record is the beginning of work. */
    private static final class Times implements TimestampExtractor {
        private static final AtomicBoolean BEGUN = new AtomicBoolean();
        private boolean begun;

        @Override
        public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
            if (!begun) {
                begun = true;
                if (BEGUN.compareAndSet(false, true)) {
                    say("first");
                }
            }
            return ((Purchase) record.value()).time();
        }
    }

    private static final class Restores implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition at, String store, long first, long end) {
            say("restoring " + first + ".." + end);
        }

        @Override
        public void onBatchRestored(TopicPartition at, String store, long last, long records) {}

        @Override
        public void onRestoreEnd(TopicPartition at, String store, long records) {
            say("restored " + records);
        }
    }
}
