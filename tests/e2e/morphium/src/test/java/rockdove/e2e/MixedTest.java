package rockdove.e2e;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import de.caluga.morphium.messaging.Msg;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Java nodes and Rust nodes share one queue. */
@Timeout(300)
class MixedTest {
    private static final long LIMIT_MS = 240_000;
    private static final Pattern ID = Pattern.compile("\"_id\":\\{\"\\$oid\":\"([0-9a-f]{24})\"}");

    private final List<AutoCloseable> running = new ArrayList<>();
    private Rockdove server;

    @BeforeEach
    void open() throws Exception {
        server = start();
    }

    Rockdove start() throws Exception {
        return new Rockdove();
    }

    /** How many exclusive messages the nodes share. */
    int exclusive() {
        return Integer.getInteger("rockdove.exclusive", 10_000);
    }

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : running) {
            each.close();
        }
        server.close();
    }

    private Bus.Settings settings(String id, Bus.Mode mode) {
        return new Bus.Settings(server, "mixed", "shared", id, mode);
    }

    private Bus java(String id, Bus.Mode mode) throws Exception {
        Bus node = new Node(settings(id, mode));
        running.add(node);
        return node;
    }

    private Rockdove.Command rust(String id, Bus.Mode mode, String... arguments) throws Exception {
        Rockdove.Command command = server.command(settings(id, mode), arguments);
        running.add(command);
        return command;
    }

    /** Ids of the messages that a `sub --json` printed. */
    private static List<String> ids(Rockdove.Command sub) {
        return sub.lines.stream().map(MixedTest::id).toList();
    }

    private static String id(String line) {
        Matcher found = ID.matcher(line.replace(" ", ""));
        if (!found.find()) {
            throw new AssertionError("no id in: " + line);
        }
        return found.group(1);
    }

    /** Runs `pub` to its end and returns the ids that it printed. */
    private Set<String> publish(Bus.Mode mode, String id, String topic, int count, String... more) throws Exception {
        List<String> arguments = new ArrayList<>(List.of("pub", topic, "{\"n\": 1}", "--ttl", "10m", "--count", "" + count));
        arguments.addAll(List.of(more));
        Rockdove.Command pub = rust(id, mode, arguments.toArray(String[]::new));
        assertEquals(0, pub.await(120));
        Receipts.awaitCount(pub.lines::size, count, 5000);
        return new HashSet<>(pub.lines);
    }

    private static Msg message(String topic) {
        return new Msg(topic, "from Java", "1", 600_000);
    }

    /** Sends them and returns their ids. */
    private static Set<String> send(Bus node, int count, boolean exclusive) {
        Set<String> ids = new HashSet<>();
        for (int n = 0; n < count; n++) {
            Msg message = message("work").setExclusive(exclusive);
            node.send(message);
            ids.add(message.getMsgId().toString());
        }
        return ids;
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void exclusiveMessagesAreHandledOnceOverBothKinds(Bus.Mode mode) throws Exception {
        Receipts receipts = new Receipts();
        for (String id : List.of("java-1", "java-2")) {
            Bus node = java(id, mode);
            node.listen("work", receipts.of(id));
            node.start();
        }
        List<Rockdove.Command> subs = new ArrayList<>();
        for (String id : List.of("rust-1", "rust-2")) {
            subs.add(rust(id, mode, "sub", "work", "--json"));
        }
        Rockdove.pause(1500);
        Bus sender = java("java-sender", mode);
        sender.start();
        Set<String> sent = send(sender, exclusive() / 2, true);
        sent.addAll(publish(mode, "rust-sender", "work", exclusive() - exclusive() / 2, "--exclusive"));
        Receipts.awaitCount(() -> receipts.total() + lines(subs), exclusive(), LIMIT_MS);
        List<String> all = new ArrayList<>(receipts.at("java-1"));
        all.addAll(receipts.at("java-2"));
        subs.forEach(sub -> all.addAll(ids(sub)));
        Receipts.assertEachOnce(sent, all);
        System.out.printf("handled: java %d + %d, rust %s%n", receipts.at("java-1").size(),
            receipts.at("java-2").size(), subs.stream().map(sub -> sub.lines.size()).toList());
    }

    private static int lines(List<Rockdove.Command> commands) {
        return commands.stream().mapToInt(command -> command.lines.size()).sum();
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void broadcastsReachEachNodeOfBothKindsOnce(Bus.Mode mode) throws Exception {
        Receipts receipts = new Receipts();
        Bus first = java("java-1", mode);
        first.listen("work", receipts.of("java-1"));
        first.start();
        Bus second = java("java-2", mode);
        second.listen("work", receipts.of("java-2"));
        second.start();
        List<Rockdove.Command> subs = List.of(
            rust("rust-1", mode, "sub", "work", "--json"), rust("rust-2", mode, "sub", "work", "--json"));
        Rockdove.pause(1500);
        Set<String> fromJava = send(first, 200, false);
        Set<String> fromRust = publish(mode, "rust-sender", "work", 200);
        Receipts.awaitCount(() -> receipts.total() + lines(subs), 200 + 400 + 2 * 400, LIMIT_MS,
            () -> "java-1 %d, java-2 %d, rust %s".formatted(receipts.at("java-1").size(),
                receipts.at("java-2").size(), subs.stream().map(sub -> sub.lines.size()).toList()));
        Receipts.assertEachOnce(fromRust, receipts.at("java-1"));
        Set<String> both = new HashSet<>(fromJava);
        both.addAll(fromRust);
        Receipts.assertEachOnce(both, receipts.at("java-2"));
        subs.forEach(sub -> Receipts.assertEachOnce(both, ids(sub)));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void directedMessagesReachTheirRecipientOnly(Bus.Mode mode) throws Exception {
        Receipts receipts = new Receipts();
        Bus first = java("java-1", mode);
        first.listen("work", receipts.of("java-1"));
        first.start();
        Bus second = java("java-2", mode);
        second.listen("work", receipts.of("java-2"));
        second.start();
        List<Rockdove.Command> subs = List.of(
            rust("rust-1", mode, "sub", "work", "--json"), rust("rust-2", mode, "sub", "work", "--json"));
        Rockdove.pause(1500);
        Set<String> toJava = publish(mode, "rust-sender", "work", 50, "--to", "java-2");
        Set<String> toRust = new HashSet<>();
        for (int n = 0; n < 50; n++) {
            Msg message = message("work").setRecipient("rust-2");
            first.send(message);
            toRust.add(message.getMsgId().toString());
        }
        Receipts.awaitCount(() -> receipts.total() + lines(subs), 100, LIMIT_MS);
        Receipts.assertEachOnce(toJava, receipts.at("java-2"));
        Receipts.assertEachOnce(toRust, ids(subs.get(1)));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void eachKindAnswersTheOther(Bus.Mode mode) throws Exception {
        Bus javaNode = java("java-1", mode);
        javaNode.listen("ask-java", request -> {
            Msg answer = request.createAnswerMsg();
            answer.setValue("java says " + request.getValue());
            return answer;
        });
        javaNode.start();
        rust("rust-1", mode, "reply", "ask-rust", "--text", "rust says hello");
        Rockdove.pause(1500);
        for (int n = 0; n < 20; n++) {
            Msg answer = javaNode.ask(new Msg("ask-rust", "m", "v" + n, 60_000).setExclusive(n % 2 == 0), 20_000);
            assertNotNull(answer, "Rust did not answer request " + n);
            assertEquals("rust says hello", answer.getValue());
        }
        for (int n = 0; n < 5; n++) {
            Rockdove.Command request =
                rust("rust-asker-" + n, mode, "request", "ask-java", "text" + n, "--timeout", "20s", "--json");
            assertEquals(0, request.await(40));
            Receipts.awaitCount(request.lines::size, 1, 5000);
            String printed = request.lines.stream().collect(Collectors.joining());
            assertEquals(true, printed.contains("java says text" + n), printed);
        }
    }
}
