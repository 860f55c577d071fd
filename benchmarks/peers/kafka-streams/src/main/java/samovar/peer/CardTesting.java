package samovar.peer;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Map;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * W1: three or more purchases below 2, then one above 200, all within ten minutes. A match uses its purchases up.
 *
 * <p>The state of a card is the times of its small purchases that may still count, oldest first.
 */
final class CardTesting implements Processor<String, Purchase, String, String> {
    private static final String STORE = "probes";
    private static final long SPAN_MS = 600_000;
    private static final int PROBES = 3;

    private ProcessorContext<String, String> context;
    private KeyValueStore<String, long[]> probes;

    static KStream<String, String> over(StreamsBuilder builder, KStream<String, Purchase> purchases, boolean cached) {
        StoreBuilder<KeyValueStore<String, long[]>> store =
            Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), Serdes.String(), times())
                .withLoggingEnabled(Map.of());
        builder.addStateStore(cached ? store.withCachingEnabled() : store.withCachingDisabled());
        return purchases.process(CardTesting::new, STORE);
    }

    @Override
    public void init(ProcessorContext<String, String> context) {
        this.context = context;
        this.probes = context.getStateStore(STORE);
    }

    @Override
    public void process(Record<String, Purchase> record) {
        Purchase purchase = record.value();
        if (purchase.amount() < 2) {
            long[] fresh = fresh(probes.get(record.key()), purchase.time());
            long[] longer = Arrays.copyOf(fresh, fresh.length + 1);
            longer[fresh.length] = purchase.time();
            probes.put(record.key(), longer);
        } else if (purchase.amount() > 200) {
            long[] fresh = fresh(probes.get(record.key()), purchase.time());
            if (fresh.length >= PROBES) {
                probes.delete(record.key());
                context.forward(record.withValue(alert(record.key(), purchase.time(), fresh.length)));
            }
        }
    }

    private static long[] fresh(long[] times, long now) {
        if (times == null) {
            return new long[0];
        }
        int first = 0;
        while (first < times.length && now - times[first] > SPAN_MS) {
            first++;
        }
        return first == 0 ? times : Arrays.copyOfRange(times, first, times.length);
    }

    private static String alert(String card, long at, int probes) {
        return "{\"rule\":\"w1\",\"card\":\"" + card + "\",\"at\":" + at + ",\"probes\":" + probes + "}";
    }

    private static Serde<long[]> times() {
        return Serdes.serdeFrom(
            (topic, times) -> {
                if (times == null) {
                    return null;
                }
                ByteBuffer bytes = ByteBuffer.allocate(times.length * Long.BYTES);
                bytes.asLongBuffer().put(times);
                return bytes.array();
            },
            (topic, bytes) -> {
                if (bytes == null) {
                    return null;
                }
                long[] times = new long[bytes.length / Long.BYTES];
                ByteBuffer.wrap(bytes).asLongBuffer().get(times);
                return times;
            });
    }
}
