package rockdove.e2e;

import de.caluga.morphium.Morphium;
import de.caluga.morphium.messaging.Msg;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;

/** What the tests need of one Morphium node. {@code Node} implements it once per generation of Morphium. */
interface Bus extends AutoCloseable {

    /** How a node uses its queue: the layout by Morphium's name, and whether it follows change streams or polls. */
    record Mode(String layout, boolean changeStreams) {
        @Override
        public String toString() {
            return layout + (changeStreams ? ", change streams" : ", polling");
        }
    }

    /** Every mode that this generation of Morphium knows. */
    static Stream<Mode> modes() {
        return Node.LAYOUTS.stream().flatMap(layout -> Stream.of(new Mode(layout, true), new Mode(layout, false)));
    }

    /** Where a node connects and how it uses its queue. */
    record Settings(Rockdove server, String database, String queue, String id, Mode mode) {}

    /** Calls the handler for each message of the topic; what it returns is sent as the answer. */
    void listen(String topic, UnaryOperator<Msg> handler);

    /** Starts to receive; returns when messages sent from now on will be seen. */
    void start() throws InterruptedException;

    void send(Msg message);

    /** Sends and waits for the first answer; null if none comes. */
    Msg ask(Msg message, long limitMs);

    /** Sends and waits for that many answers. */
    List<Msg> askAll(Msg message, int answers, long limitMs);

    Morphium morphium();

    @Override
    void close();
}
