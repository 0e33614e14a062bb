package rockdove.e2e;

import static org.junit.jupiter.api.Assertions.assertEquals;

import de.caluga.morphium.messaging.Msg;
import java.util.Collection;
import java.util.HashSet;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.IntSupplier;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/** Who received what: ids by node. */
final class Receipts {
    /** After the last expected receipt one more this long would be a duplicate. */
    private static final long SETTLING_MS = 1000;

    private final Map<String, Queue<String>> byNode = new ConcurrentHashMap<>();

    /** A handler that notes the message's id under that node and answers nothing. */
    UnaryOperator<Msg> of(String node) {
        Queue<String> ids = byNode.computeIfAbsent(node, unused -> new ConcurrentLinkedQueue<>());
        return message -> {
            ids.add(message.getMsgId().toString());
            return null;
        };
    }

    Collection<String> at(String node) {
        return byNode.getOrDefault(node, new ConcurrentLinkedQueue<>());
    }

    int total() {
        return byNode.values().stream().mapToInt(Queue::size).sum();
    }

    /** Waits until `count` gives that number, then a while longer for what should not come. */
    static void awaitCount(IntSupplier count, int expected, long limitMs) {
        awaitCount(count, expected, limitMs, () -> "");
    }

    /** The same; a failure says in detail what came. */
    static void awaitCount(IntSupplier count, int expected, long limitMs, Supplier<String> detail) {
        long deadline = System.currentTimeMillis() + limitMs;
        while (count.getAsInt() < expected && System.currentTimeMillis() < deadline) {
            Rockdove.pause(20);
        }
        Rockdove.pause(SETTLING_MS);
        assertEquals(expected, count.getAsInt(), detail);
    }

    /** Fails unless these are exactly the expected ids, each once. */
    static void assertEachOnce(Set<String> expected, Collection<String> received) {
        Set<String> distinct = new HashSet<>(received);
        assertEquals(distinct.size(), received.size(), "a message was handled more than once");
        assertEquals(expected, distinct);
    }
}
