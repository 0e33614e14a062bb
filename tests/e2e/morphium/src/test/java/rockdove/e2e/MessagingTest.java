package rockdove.e2e;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import de.caluga.morphium.messaging.Msg;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Morphium's messaging between Java nodes, in every mode. */
@Timeout(120)
class MessagingTest {
    private static final long LIMIT_MS = 60_000;

    private final List<Bus> nodes = new ArrayList<>();
    private Rockdove server;

    @BeforeEach
    void open() throws Exception {
        server = new Rockdove();
    }

    @AfterEach
    void close() {
        nodes.forEach(Bus::close);
        server.close();
    }

    private Bus node(String id, Bus.Mode mode) throws Exception {
        Bus node = new Node(new Bus.Settings(server, "bus", "orders", id, mode));
        nodes.add(node);
        return node;
    }

    private static Msg message(String topic, int number) {
        Msg message = new Msg(topic, "number", Integer.toString(number), 600_000);
        message.addValue("number", number);
        return message;
    }

    /** Sends them and returns their ids. */
    private static Set<String> send(Bus node, String topic, int count, boolean exclusive) {
        Set<String> ids = new HashSet<>();
        for (int n = 0; n < count; n++) {
            Msg message = message(topic, n).setExclusive(exclusive);
            node.send(message);
            ids.add(message.getMsgId().toString());
        }
        return ids;
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void aBroadcastReachesEachOtherNodeOnce(Bus.Mode mode) throws Exception {
        Receipts receipts = new Receipts();
        for (String id : List.of("a", "b", "c")) {
            Bus node = node(id, mode);
            node.listen("created", receipts.of(id));
            node.start();
        }
        Set<String> sent = send(nodes.get(0), "created", 200, false);
        Receipts.awaitCount(receipts::total, 400, LIMIT_MS);
        Receipts.assertEachOnce(sent, receipts.at("b"));
        Receipts.assertEachOnce(sent, receipts.at("c"));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void anExclusiveMessageIsHandledOnce(Bus.Mode mode) throws Exception {
        Receipts receipts = new Receipts();
        Bus sender = node("sender", mode);
        sender.start();
        for (String id : List.of("a", "b", "c")) {
            Bus node = node(id, mode);
            node.listen("work", receipts.of(id));
            node.start();
        }
        Set<String> sent = send(sender, "work", 500, true);
        Receipts.awaitCount(receipts::total, 500, LIMIT_MS);
        List<String> all = new ArrayList<>();
        List.of("a", "b", "c").forEach(id -> all.addAll(receipts.at(id)));
        Receipts.assertEachOnce(sent, all);
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void aDirectedMessageReachesItsRecipientOnly(Bus.Mode mode) throws Exception {
        Receipts receipts = new Receipts();
        for (String id : List.of("a", "b", "c")) {
            Bus node = node(id, mode);
            node.listen("direct", receipts.of(id));
            node.start();
        }
        for (int n = 0; n < 50; n++) {
            nodes.get(0).send(message("direct", n).setRecipient("c"));
        }
        Receipts.awaitCount(receipts::total, 50, LIMIT_MS);
        assertEquals(50, receipts.at("c").size());
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void aRequestIsAnswered(Bus.Mode mode) throws Exception {
        Bus asker = node("asker", mode);
        for (String id : List.of("a", "b", "c")) {
            Bus node = node(id, mode);
            node.listen("double", request -> {
                Msg answer = request.createAnswerMsg();
                answer.setValue(Integer.toString(2 * Integer.parseInt(request.getValue())));
                answer.setMsg(id);
                return answer;
            });
            node.start();
        }
        asker.start();
        for (int n = 0; n < 30; n++) {
            Msg answer = asker.ask(message("double", n), 20_000);
            assertNotNull(answer, "no answer to request " + n);
            assertEquals(Integer.toString(2 * n), answer.getValue());
        }
        List<Msg> answers = asker.askAll(message("double", 21), 3, 20_000);
        assertEquals(Set.of("a", "b", "c"), new HashSet<>(answers.stream().map(Msg::getMsg).toList()));
        assertTrue(answers.stream().allMatch(answer -> answer.getValue().equals("42")));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("rockdove.e2e.Bus#modes")
    void messagesSentBeforeAListenerCameAreHandled(Bus.Mode mode) throws Exception {
        Bus sender = node("sender", mode);
        sender.start();
        Set<String> sent = send(sender, "early", 150, true);
        Receipts receipts = new Receipts();
        Bus late = node("late", mode);
        late.listen("early", receipts.of("late"));
        late.start();
        Receipts.awaitCount(receipts::total, 150, LIMIT_MS);
        Receipts.assertEachOnce(sent, receipts.at("late"));
    }
}
