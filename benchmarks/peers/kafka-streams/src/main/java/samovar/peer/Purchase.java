package samovar.peer;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** What the workloads need of a purchase. The card is the record's key, so it is not read a second time. */
record Purchase(double amount, long time) {
    private static final JsonFactory JSON = new JsonFactory();

    /** With Jackson's streaming parser, the quickest way that is still JSON: fields that nobody asks for are skipped. */
    static Purchase parse(byte[] json) {
        double amount = 0;
        long time = 0;
        try (JsonParser parser = JSON.createParser(json)) {
            parser.nextToken();
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                String field = parser.currentName();
                parser.nextToken();
                switch (field) {
                    case "amount" -> amount = parser.getDoubleValue();
                    case "ts" -> time = parser.getLongValue();
                    default -> parser.skipChildren();
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return new Purchase(amount, time);
    }

    static Serde<Purchase> serde() {
        return Serdes.serdeFrom(
            (topic, purchase) -> {
                throw new UnsupportedOperationException("purchases are only read");
            },
            (topic, json) -> json == null ? null : parse(json));
    }
}
