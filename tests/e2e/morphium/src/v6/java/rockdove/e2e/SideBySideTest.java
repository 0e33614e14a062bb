package rockdove.e2e;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import de.caluga.morphium.annotations.Entity;
import de.caluga.morphium.annotations.Id;
import de.caluga.morphium.annotations.caching.Cache;
import de.caluga.morphium.cache.MessagingCacheSyncListener;
import de.caluga.morphium.cache.MessagingCacheSynchronizer;
import de.caluga.morphium.config.MessagingSettings.ImplementationCheck;
import de.caluga.morphium.config.MessagingSettings.RecipientCheck;
import de.caluga.morphium.config.MessagingSettings.TopicCheck;
import de.caluga.morphium.driver.MorphiumId;
import de.caluga.morphium.messaging.Msg;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What Java and Rust nodes tell each other besides messages: who they are, what they listen to, what to forget. */
@Timeout(120)
class SideBySideTest {
    private static final long LIMIT_MS = 30_000;

    @Entity
    @Cache(syncCache = Cache.SyncCacheStrategy.CLEAR_TYPE_CACHE)
    public static class Cached {
        @Id
        public MorphiumId id;
        public String name;
    }

    private final List<AutoCloseable> running = new ArrayList<>();
    private Rockdove server;

    @BeforeEach
    void open() throws Exception {
        server = new Rockdove();
    }

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : running) {
            each.close();
        }
        server.close();
    }

    private Bus.Settings settings(String id, Bus.Mode mode) {
        return new Bus.Settings(server, "side", "shared", id, mode);
    }

    private <T extends AutoCloseable> T keep(T each) {
        running.add(each);
        return each;
    }

    private Rockdove.Command rust(String id, Bus.Mode mode, String... arguments) throws Exception {
        return keep(server.command(settings(id, mode), arguments));
    }

    private static void eventually(String what, BooleanSupplier condition) {
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        while (!condition.getAsBoolean()) {
            assertTrue(System.currentTimeMillis() < deadline, "never: " + what);
            Rockdove.pause(20);
        }
    }

    static Stream<Arguments> mismatches() {
        return Node.LAYOUTS.stream()
            .flatMap(rust -> Node.LAYOUTS.stream().filter(java -> !java.equals(rust)).map(java -> Arguments.of(rust, java)));
    }

    @ParameterizedTest(name = "Rust {0}, Java {1}")
    @MethodSource("mismatches")
    void aStrictJavaNodeRefusesToJoinRustNodesOfAnotherLayout(String rust, String java) throws Exception {
        rust("rust-1", new Bus.Mode(rust, true), "sub", "t");
        Rockdove.pause(1000);
        Bus.Settings settings = settings("java-1", new Bus.Mode(java, true));
        Node strict = keep(new Node(settings, more -> more.setMessagingImplementationCheck(ImplementationCheck.THROW)));
        RuntimeException refused = assertThrows(RuntimeException.class, strict::start);
        assertTrue(refused.toString().contains("rust-1"), refused.toString());
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void javaRegistriesKnowRustNodesAndTheirTopics(Bus.Mode mode) throws Exception {
        Rockdove.Command sub = rust("rust-1", mode, "sub", "orders", "--json");
        Node java = keep(new Node(settings("java-1", mode), more -> {
            more.setMessagingRegistryEnabled(true);
            more.setMessagingRegistryCheckTopics(TopicCheck.THROW);
            more.setMessagingRegistryCheckRecipients(RecipientCheck.THROW);
            more.setMessagingRegistryUpdateInterval(2);
        }));
        java.start();
        eventually("the registry knows the topic", () -> {
            try {
                java.send(new Msg("orders", "m", "to all", 60_000));
                return true;
            } catch (RuntimeException unknown) {
                return false;
            }
        });
        java.send(new Msg("orders", "m", "to one", 60_000).setRecipient("rust-1"));
        eventually("both arrive", () -> sub.lines.size() == 2);
        assertThrows(RuntimeException.class, () -> java.send(new Msg("nobody listens", "m", "v", 60_000)));
        assertThrows(RuntimeException.class, () -> java.send(new Msg("orders", "m", "v", 60_000).setRecipient("nobody")));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void eachKindAnswersStatusRequests(Bus.Mode mode) throws Exception {
        Node java = keep(new Node(settings("java-1", mode)));
        java.listen("java topic", message -> null);
        java.start();
        rust("rust-1", mode, "sub", "rust.topic");
        Rockdove.pause(1000);
        Msg answer = java.ask(new Msg("morphium.status_info", "m", "ALL", 30_000).setRecipient("rust-1"), LIMIT_MS);
        assertTrue(answer.getMapValue().get("message_listeners_by_name").toString().contains("rust.topic"));
        Rockdove.Command request = rust("rust-2", mode, "request", "morphium.status_info", "--to", "java-1", "--timeout", "30s", "--json");
        assertEquals(0, request.await(60));
        eventually("the answer is printed", () -> request.lines.size() == 1);
        assertTrue(request.lines.get(0).contains("java topic"), request.lines.get(0));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void newsAboutCachesPassBothWays(Bus.Mode mode) throws Exception {
        Node java = keep(new Node(settings("java-1", mode)));
        Queue<String> cleared = new ConcurrentLinkedQueue<>();
        MessagingCacheSynchronizer sync = new MessagingCacheSynchronizer(java.messaging(), java.morphium());
        sync.addSyncListener(new MessagingCacheSyncListener() {
            @Override
            public void preSendClearMsg(Class type, Msg message) {}

            @Override
            public void postSendClearMsg(Class type, Msg message) {}

            @Override
            public void preClear(Class type) {}

            @Override
            public void postClear(Class type) {
                cleared.add(type == null ? "ALL" : type.getName());
            }
        });
        java.start();
        Rockdove.Command sub = rust("rust-1", mode, "sub", "cacheSyncType", "--json");
        Rockdove.pause(1000);
        Cached changed = new Cached();
        changed.name = "Ada";
        java.morphium().store(changed);
        eventually("Rust hears of it", () -> sub.lines.size() == 1);
        assertTrue(sub.lines.get(0).contains(Cached.class.getName()), sub.lines.get(0));
        for (String what : List.of(Cached.class.getName(), "ALL")) {
            assertEquals(0, rust("rust-2", mode, "pub", "cacheSyncType", what, "--msg", "store").await(30));
            eventually("Java clears " + what, () -> cleared.contains(what));
        }
    }

    /** Java nodes of the old and of the new layout, with `rockdove migrate` between them. */
    @ParameterizedTest(name = "change streams: {0}")
    @ValueSource(booleans = {true, false})
    void aBridgeCarriesMessagesBetweenJavaNodesOfBothLayouts(boolean changeStreams) throws Exception {
        Node old = keep(new Node(settings("java-old", new Bus.Mode("StandardMessaging", changeStreams))));
        Node changed = keep(new Node(settings("java-new", new Bus.Mode("MultiCollectionMessaging", changeStreams))));
        Receipts receipts = new Receipts();
        changed.listen("work", receipts.of("java-new"));
        changed.listen("ask", request -> {
            Msg answer = request.createAnswerMsg();
            answer.setValue("new says " + request.getValue());
            return answer;
        });
        old.start();
        changed.start();
        String uri = "mongodb://127.0.0.1:" + server.port() + "/side";
        keep(new Rockdove.Command(List.of("migrate", "--to", "multi-collection", "--queue", "shared", "--uri", uri)));
        Set<String> sent = new HashSet<>();
        for (int n = 0; n < 150; n++) {
            Msg message = new Msg("work", "m", "v" + n, 600_000).setExclusive(n % 3 == 0);
            if (n % 3 == 1) {
                message.setRecipient("java-new");
            }
            old.send(message);
            sent.add(message.getMsgId().toString());
        }
        Receipts.awaitCount(receipts::total, sent.size(), LIMIT_MS);
        Receipts.assertEachOnce(sent, receipts.at("java-new"));
        Msg answer = old.ask(new Msg("ask", "m", "hello", 60_000).setExclusive(true), LIMIT_MS);
        assertEquals("new says hello", answer.getValue());
    }
}
