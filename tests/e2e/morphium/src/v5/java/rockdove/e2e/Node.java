package rockdove.e2e;

import de.caluga.morphium.Morphium;
import de.caluga.morphium.MorphiumConfig;
import de.caluga.morphium.messaging.MessageListener;
import de.caluga.morphium.messaging.Messaging;
import de.caluga.morphium.messaging.Msg;
import java.util.List;
import java.util.function.UnaryOperator;

/** A node of Morphium 5. */
final class Node implements Bus {
    static final List<String> LAYOUTS = List.of("StandardMessaging");

    /** Morphium 5 does not say when its change stream is open. */
    private static final long OPENING_MS = 1500;

    private final Morphium morphium;
    private final Messaging messaging;

    Node(Settings settings) {
        MorphiumConfig config = new MorphiumConfig();
        config.setDatabase(settings.database());
        config.setMaxConnections(60);
        config.setMinConnections(2);
        config.addHostToSeed("127.0.0.1", settings.server().port());
        morphium = new Morphium(config);
        messaging = new Messaging(morphium, settings.queue(), 100, true, true, 100, settings.mode().changeStreams());
        messaging.setSenderId(settings.id());
    }

    @Override
    public void listen(String topic, UnaryOperator<Msg> handler) {
        messaging.addListenerForMessageNamed(topic, (MessageListener<Msg>) (node, message) -> handler.apply(message));
    }

    @Override
    public void start() throws InterruptedException {
        messaging.start();
        Thread.sleep(OPENING_MS);
    }

    @Override
    public void send(Msg message) {
        messaging.sendMessage(message);
    }

    @Override
    public Msg ask(Msg message, long limitMs) {
        return messaging.sendAndAwaitFirstAnswer(message, limitMs, false);
    }

    @Override
    public List<Msg> askAll(Msg message, int answers, long limitMs) {
        return messaging.sendAndAwaitAnswers(message, answers, limitMs, false);
    }

    @Override
    public Morphium morphium() {
        return morphium;
    }

    @Override
    public void close() {
        messaging.terminate();
        morphium.close();
    }
}
