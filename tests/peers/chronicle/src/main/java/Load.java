import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicReference;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.bytes.SyncMode;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.wire.DocumentContext;

/**
 * Load on a Chronicle queue through its usual API, for `rockdove bench log --chronicle`: see the script beside it for the
 * arguments. One line of JSON is the result, times in nanoseconds.
 */
public final class Load {
    private static final double[] PERCENTILES = {50, 90, 99, 99.9, 99.99};

    private final Path folder;
    private final int size;
    private final int count;
    private final int warmUp;
    private final long rate;
    private final boolean syncs;

    private Load(String[] args) {
        folder = Path.of(args[1]);
        size = Integer.parseInt(args[2]);
        count = Integer.parseInt(args[3]);
        warmUp = Integer.parseInt(args[4]);
        rate = Long.parseLong(args[5]);
        syncs = Boolean.parseBoolean(args[6]);
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 7) {
            throw new IllegalArgumentException("throughput|latency FOLDER SIZE COUNT WARM_UP RATE SYNC");
        }
        Load load = new Load(args);
        String result = switch (args[0]) {
            case "throughput" -> load.throughput();
            case "latency" -> load.latency();
            default -> throw new IllegalArgumentException(args[0]);
        };
        System.out.println(result);
        System.out.flush();
        // The library's helper threads need not be waited for.
        Runtime.getRuntime().halt(0);
    }

    private ChronicleQueue open() {
        SingleChronicleQueueBuilder builder = ChronicleQueue.singleBuilder(folder);
        return (syncs ? builder.syncMode(SyncMode.SYNC) : builder).build();
    }

    private void append(ExcerptAppender appender, Bytes<?> payload, long stamp) {
        payload.writeLong(0, stamp);
        try (DocumentContext document = appender.writingDocument()) {
            document.wire().bytes().write(payload, 0L, size);
        }
        if (syncs) {
            appender.sync();
        }
    }

    /** As fast as it goes: entries a second. */
    private String throughput() {
        Bytes<?> payload = Bytes.allocateElasticDirect(size);
        payload.write(new byte[size]);
        try (ChronicleQueue queue = open(); ExcerptAppender appender = queue.createAppender()) {
            for (int i = 0; i < warmUp; i++) {
                append(appender, payload, 0);
            }
            long started = System.nanoTime();
            for (int i = 0; i < count; i++) {
                append(appender, payload, 0);
            }
            return "{\"perSecond\": " + count * 1e9 / (System.nanoTime() - started) + "}";
        }
    }

    /** Entry i is due at the start plus i / rate, and its latency counts from then until a tailer that looks all the time
     * has it. */
    private String latency() throws InterruptedException, IOException {
        long[] latencies = new long[count];
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (ChronicleQueue queue = open(); ExcerptAppender appender = queue.createAppender()) {
            Thread reader = new Thread(() -> {
                try (ExcerptTailer tailer = queue.createTailer()) {
                    for (int i = 0; i < warmUp + count; ) {
                        try (DocumentContext document = tailer.readingDocument()) {
                            if (!document.isPresent()) {
                                Thread.onSpinWait();
                                continue;
                            }
                            Bytes<?> bytes = document.wire().bytes();
                            long due = bytes.readLong(bytes.readPosition());
                            if (i >= warmUp) {
                                latencies[i - warmUp] = System.nanoTime() - due;
                            }
                        }
                        i++;
                    }
                } catch (Throwable thrown) {
                    failure.set(thrown);
                }
            });
            reader.start();
            Bytes<?> payload = Bytes.allocateElasticDirect(size);
            payload.write(new byte[size]);
            long start = System.nanoTime();
            for (int i = 0; i < warmUp + count; i++) {
                long due = start + (long) (i * 1e9 / rate);
                while (System.nanoTime() < due) {
                    Thread.onSpinWait();
                }
                append(appender, payload, due);
            }
            reader.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        Arrays.sort(latencies);
        StringBuilder json = new StringBuilder("{");
        for (double percentile : PERCENTILES) {
            int at = Math.min(count - 1, (int) Math.ceil(percentile / 100 * count) - 1);
            String name = percentile == Math.rint(percentile) ? "p" + (int) percentile : "p" + percentile;
            json.append("\"").append(name).append("\": ").append(latencies[Math.max(0, at)]).append(", ");
        }
        return json.append("\"max\": ").append(latencies[count - 1]).append("}").toString();
    }
}
