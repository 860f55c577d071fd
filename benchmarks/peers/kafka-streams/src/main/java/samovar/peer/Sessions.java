package samovar.peer;

import java.nio.ByteBuffer;
import java.time.Duration;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.SessionStore;

/**
 * W2: what a card spends in a session, which ends when 30 seconds pass without a purchase. Only the final result.
 *
 * <p>Retention is ten minutes: with the default, sessions are dropped unseen when it catches up.
 */
final class Sessions {
    private static final Duration GAP = Duration.ofSeconds(30);
    private static final Duration RETENTION = Duration.ofMinutes(10);

    private record Spent(long count, double sum) {}

    private Sessions() {}

    static KStream<String, String> over(KStream<String, Purchase> purchases) {
        return purchases
            .groupByKey(Grouped.with(Serdes.String(), Purchase.serde()))
            .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(GAP))
            .emitStrategy(EmitStrategy.onWindowClose())
            .aggregate(
                () -> new Spent(0, 0),
                (card, purchase, spent) -> new Spent(spent.count() + 1, spent.sum() + purchase.amount()),
                (card, one, other) -> new Spent(one.count() + other.count(), one.sum() + other.sum()),
                Materialized.<String, Spent, SessionStore<Bytes, byte[]>>as("sessions")
                    .withRetention(RETENTION)
                    .withKeySerde(Serdes.String())
                    .withValueSerde(spent()))
            .toStream()
            .map((session, spent) -> KeyValue.pair(session.key(), result(session, spent)));
    }

    private static String result(Windowed<String> session, Spent spent) {
        return "{\"rule\":\"w2\",\"card\":\"" + session.key() + "\",\"start\":" + session.window().start()
            + ",\"end\":" + session.window().end() + ",\"count\":" + spent.count() + ",\"spent\":" + spent.sum() + "}";
    }

    private static Serde<Spent> spent() {
        return Serdes.serdeFrom(
            (topic, spent) -> spent == null
                ? null
                : ByteBuffer.allocate(16).putLong(spent.count()).putDouble(spent.sum()).array(),
            (topic, bytes) -> {
                if (bytes == null) {
                    return null;
                }
                ByteBuffer packed = ByteBuffer.wrap(bytes);
                return new Spent(packed.getLong(), packed.getDouble());
            });
    }
}
